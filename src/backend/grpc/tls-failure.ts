/** TLS that cannot work, found before or while connecting. */
import { createSecureContext } from 'node:tls';
import { InvalidArgumentError, asError } from '../../core/errors';
import { withoutFullStop } from '../../core/full-stop';
import type { TlsOptions } from './endpoint';

/** @throws InvalidArgumentError if the three do not parse, or the key is not the certificate's */
export function checkTls(tls: TlsOptions | undefined): void {
  if (tls === undefined) return;
  try {
    createSecureContext({ ca: tls.ca, cert: tls.cert, key: tls.key });
  } catch (error) {
    throw new InvalidArgumentError(
      `tls: ${withoutFullStop(asError(error).message)}. Expected PEM texts (not file names): ca of the authority, cert and key of this rank.`,
      { cause: error },
    );
  }
}

/** What OpenSSL means, without where in its source it says so. */
export function tlsReason(message: string): string {
  const [, reason] = /SSL routines:[^:]*:([^:]+)/.exec(message) ?? [];
  return (reason ?? message).trim();
}

/**
 * The error of a connection, if it is TLS's: another attempt would fail in the same way. Undefined for others.
 * @param error of node:tls or of gRPC, which keeps the text only
 */
export function tlsFailure(error: Error): InvalidArgumentError | undefined {
  const { code, message } = error as NodeJS.ErrnoException;
  const isTls = /^(ERR_SSL|ERR_TLS|CERT_|UNABLE_TO_|SELF_SIGNED|DEPTH_ZERO|EPROTO)/.test(String(code));
  if (!isTls && !/certificate|altname|SSL routines|wrong version number/i.test(message)) return undefined;
  return new InvalidArgumentError(
    `TLS failed: ${tlsReason(message)}. Check tls.ca, tls.cert and tls.key of both ranks, and that all ranks use TLS or none.`,
    { cause: error },
  );
}
