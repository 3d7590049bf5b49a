/**
 * X.509 certificates for tests, made on the spot: a certificate authority, and certificates for 127.0.0.1, ::1 and
 * localhost that it signed. node:crypto signs but does not write certificates, so the little DER that one needs is here
 * (RFC 5280, section 4.1).
 */
import { generateKeyPairSync, randomBytes, sign, type KeyObject } from 'node:crypto';
import type { TlsOptions } from '../../src/backend/grpc/endpoint';

export class CertificateAuthority {
  readonly #keys = generateKeyPairSync('ec', { namedCurve: 'prime256v1' });
  readonly #name: string;
  /** PEM of the authority's own certificate. */
  readonly certificate: string;

  constructor(name: string) {
    this.#name = name;
    this.certificate = pem('CERTIFICATE', this.#sign(name, this.#keys.publicKey, [basicConstraints(true)], validity()));
  }

  /** Everything that a rank needs for mutual TLS. */
  issue(name: string, dates: Buffer = validity()): TlsOptions {
    const keys = generateKeyPairSync('ec', { namedCurve: 'prime256v1' });
    const certificate = this.#sign(name, keys.publicKey, [basicConstraints(false), LOOPBACK_NAMES], dates);
    return {
      ca: this.certificate,
      cert: pem('CERTIFICATE', certificate),
      key: keys.privateKey.export({ type: 'pkcs8', format: 'pem' }).toString(),
    };
  }

  #sign(subject: string, publicKey: KeyObject, extensions: readonly Buffer[], dates: Buffer): Buffer {
    const body = sequence(
      tagged(0xa0, integer(Buffer.from([2]))), // version 3
      integer(Buffer.concat([Buffer.from([1]), randomBytes(8)])),
      ECDSA_WITH_SHA256,
      distinguishedName(this.#name),
      dates,
      distinguishedName(subject),
      publicKey.export({ type: 'spki', format: 'der' }),
      tagged(0xa3, sequence(...extensions)),
    );
    const signature = sign('sha256', body, this.#keys.privateKey);
    return sequence(body, ECDSA_WITH_SHA256, tagged(0x03, Buffer.concat([Buffer.from([0]), signature])));
  }
}

/** From yesterday until tomorrow, or shifted by some days. */
export function validity(shiftDays = 0): Buffer {
  const day = (days: number): Buffer => {
    const iso = new Date(Date.now() + (days + shiftDays) * 86_400_000).toISOString();
    return tagged(0x17, Buffer.from(`${iso.slice(2, 19).replace(/[-:T]/g, '')}Z`)); // UTCTime
  };
  return sequence(day(-1), day(1));
}

function tagged(tag: number, content: Buffer): Buffer {
  const { length } = content;
  const size = length < 128 ? [length] : length < 256 ? [0x81, length] : [0x82, length >> 8, length & 255];
  return Buffer.concat([Buffer.from([tag, ...size]), content]);
}

function sequence(...parts: readonly Buffer[]): Buffer {
  return tagged(0x30, Buffer.concat(parts));
}

function integer(bytes: Buffer): Buffer {
  return tagged(0x02, bytes);
}

const ECDSA_WITH_SHA256 = sequence(Buffer.from('06082a8648ce3d040302', 'hex'));

function distinguishedName(commonName: string): Buffer {
  const attribute = sequence(Buffer.from('0603550403', 'hex'), tagged(0x0c, Buffer.from(commonName)));
  return sequence(tagged(0x31, attribute));
}

function extension(objectIdentifier: string, isCritical: boolean, value: Buffer): Buffer {
  const critical = isCritical ? [Buffer.from('0101ff', 'hex')] : [];
  return sequence(Buffer.from(objectIdentifier, 'hex'), ...critical, tagged(0x04, value));
}

function basicConstraints(isAuthority: boolean): Buffer {
  return extension('0603551d13', true, isAuthority ? sequence(Buffer.from('0101ff', 'hex')) : sequence());
}

const LOOPBACK_NAMES = extension(
  '0603551d11',
  false,
  sequence(
    tagged(0x82, Buffer.from('localhost')),
    tagged(0x87, Buffer.from([127, 0, 0, 1])),
    tagged(0x87, Buffer.from([...new Array<number>(15).fill(0), 1])),
  ),
);

function pem(label: string, der: Buffer): string {
  const lines = der.toString('base64').match(/.{1,64}/g) ?? [];
  return [`-----BEGIN ${label}-----`, ...lines, `-----END ${label}-----`, ''].join('\n');
}
