/** The handshake of [Note: handshake] over anything that carries messages: a socket, or a gRPC stream. */
import {
  ACCEPTED,
  HandshakeError,
  answerChallenge,
  checkClaims,
  checkProof,
  createChallenge,
  createHello,
  decodeAccepted,
  decodeChallenge,
  decodeHello,
  decodeProof,
  encodeHandshake,
  refusalOf,
  type HandshakeClaims,
  type HandshakeExpectation,
  type Hello,
} from './handshake';

/** One connection, seen as messages. */
export interface HandshakeChannel {
  send(message: Uint8Array): void;
  /** The next message; rejects if the connection ends first. */
  receive(): Promise<Uint8Array>;
}

/**
 * The client's part; the connection may be used once this resolves.
 *
 * @throws HandshakeError why one side refused the other
 */
export async function connectHandshake(
  channel: HandshakeChannel,
  claims: HandshakeClaims,
  token: string | undefined,
): Promise<void> {
  const hello = createHello(claims);
  channel.send(encodeHandshake(hello));
  const challenge = decodeChallenge(await channel.receive());
  channel.send(encodeHandshake(answerOrTell(channel, () => answerChallenge(hello, challenge, token))));
  decodeAccepted(await channel.receive());
}

export interface AcceptOptions {
  readonly token: string | undefined;
  readonly expected: HandshakeExpectation;
  /** Nonces of clients that proved themselves here before; a hello that repeats one is a replay. Added to. */
  readonly provenNonces: Set<string>;
  /** The last word, after all checks; throws a HandshakeError to refuse. */
  readonly admit?: ((hello: Hello) => void) | undefined;
}

/**
 * The server's part: resolves with what the client claimed, all of it checked. How long it may take is for the caller
 * to limit, by ending the connection.
 *
 * @throws HandshakeError after telling the client
 */
export async function acceptHandshake(channel: HandshakeChannel, options: AcceptOptions): Promise<Hello> {
  const { token, expected, provenNonces, admit } = options;
  const first = await channel.receive();
  const hello = answerOrTell(channel, () => checkNew(decodeHello(first), provenNonces));
  const challenge = createChallenge(hello, token);
  channel.send(encodeHandshake(challenge));
  const last = await channel.receive();
  answerOrTell(channel, () => {
    checkProof(hello, challenge, decodeProof(last), token);
    checkNew(hello, provenNonces);
    checkClaims(hello, expected);
    admit?.(hello);
    provenNonces.add(hello.nonce);
  });
  channel.send(encodeHandshake(ACCEPTED));
  return hello;
}

function checkNew(hello: Hello, provenNonces: ReadonlySet<string>): Hello {
  if (!provenNonces.has(hello.nonce)) return hello;
  throw new HandshakeError(
    'replay',
    'it repeats the hello of a connection that was accepted before. Someone replays recorded traffic.',
  );
}

function answerOrTell<T>(channel: HandshakeChannel, check: () => T): T {
  try {
    return check();
  } catch (error) {
    if (error instanceof HandshakeError) channel.send(encodeHandshake(refusalOf(error)));
    throw error;
  }
}
