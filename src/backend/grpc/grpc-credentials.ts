/** Mutual TLS for gRPC, and what TLS says when it fails. */
import { ServerCredentials, credentials, type ChannelCredentials, type ChannelOptions } from '@grpc/grpc-js';
import { isIP } from 'node:net';
import { checkServerIdentity } from 'node:tls';
import type { TlsOptions } from './endpoint';

export function serverCredentials(tls: TlsOptions | undefined): ServerCredentials {
  if (tls === undefined) return ServerCredentials.createInsecure();
  const pair = { private_key: Buffer.from(tls.key), cert_chain: Buffer.from(tls.cert) };
  return ServerCredentials.createSsl(Buffer.from(tls.ca), [pair], true);
}

export interface ClientTls {
  readonly credentials: ChannelCredentials;
  /** To be added to those of the client. */
  readonly options: ChannelOptions;
}

/** @param host name or address, without port; the server's certificate must be for it */
export function clientTls(tls: TlsOptions | undefined, host: string): ClientTls {
  if (tls === undefined) return { credentials: credentials.createInsecure(), options: {} };
  const channel = credentials.createSsl(Buffer.from(tls.ca), Buffer.from(tls.key), Buffer.from(tls.cert), {
    checkServerIdentity: (_name, certificate) => checkServerIdentity(host, certificate),
  });
  // grpc-js would say an address in the TLS hello, where RFC 6066 allows only names, and Node.js warns of that.
  return { credentials: channel, options: { 'grpc.ssl_target_name_override': isIP(host) === 0 ? host : 'localhost' } };
}
