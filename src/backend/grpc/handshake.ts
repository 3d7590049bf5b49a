/**
 * How two processes of a job prove to each other that they hold the job's token: messages and checks, no network.
 *
 * [Note: handshake] The side that connects is the client.
 *
 *     client: hello      what it claims to be, and a fresh nonce        (nothing of it is believed yet)
 *     server: challenge  a fresh nonce, and the server's proof
 *     client: proof      its own proof; it has checked the server's
 *     server: accepted   or a refusal with the reason
 *
 * A proof is HMAC-SHA256 under the token over the role, everything the hello claims, and both nonces: it holds for this
 * connection alone, and neither side's proof serves as the other's. Before its proof a client learns nothing about the
 * job; what it claims (generation, world size, rank) is judged after it, so that only a holder of the token is told why
 * it does not fit. Every message is JSON of at most MAX_HANDSHAKE_BYTES.
 */
import { createHmac, randomBytes, timingSafeEqual } from 'node:crypto';
import { z } from 'zod';
import { InvalidArgumentError, type ErrorContext } from '../../core/errors';
import { PROTOCOL_VERSION } from './frame';

/** The most bytes of one handshake message; a longer one is refused unread. */
export const MAX_HANDSHAKE_BYTES = 4096;
/** Bytes of each side's nonce. */
export const NONCE_BYTES = 32;

/** What a connection is for: a session with the store, or the frames of one rank to another. */
export type HandshakePurpose = 'store' | 'link';

/** Why a connection was refused. */
export type RefusalCode =
  | 'malformed'
  | 'oversized'
  | 'version'
  | 'token'
  | 'replay'
  | 'purpose'
  | 'generation'
  | 'world-size'
  | 'rank'
  | 'duplicate'
  | 'busy';

/** A connection was refused; `message` holds nothing that the other side must not see. */
export class HandshakeError extends InvalidArgumentError {
  readonly refusal: RefusalCode;

  constructor(refusal: RefusalCode, message: string, context?: ErrorContext) {
    super(message, context);
    this.refusal = refusal;
  }
}

/** What a client says of itself when it connects. */
export interface HandshakeClaims {
  readonly purpose: HandshakePurpose;
  readonly generation: number;
  readonly rank: number;
  readonly worldSize: number;
  /** The rank that the client wants to reach; null for the store. */
  readonly peerRank: number | null;
}

/** What a server requires of the claims. */
export interface HandshakeExpectation {
  readonly purpose: HandshakePurpose;
  readonly generation: number;
  /** Undefined where the server does not know it (a store process on its own). */
  readonly worldSize: number | undefined;
  /** The server's rank; null for the store. */
  readonly ownRank: number | null;
}

const nonce = z.string().regex(/^[A-Za-z0-9_-]{43}$/, 'expected 32 bytes in base64url');
const proof = nonce; // SHA-256 has 32 bytes too
const word = z.number().int().min(0).max(0xffffffff);

const helloSchema = z.strictObject({
  type: z.literal('hello'),
  protocol: z.literal('lockstep'),
  version: z.literal(PROTOCOL_VERSION),
  purpose: z.enum(['store', 'link']),
  generation: word,
  rank: word,
  worldSize: word.min(1),
  peerRank: word.nullable(),
  nonce,
});
const challengeSchema = z.strictObject({ type: z.literal('challenge'), nonce, proof });
const proofSchema = z.strictObject({ type: z.literal('proof'), proof });
const acceptedSchema = z.strictObject({ type: z.literal('accepted') });
const refusalSchema = z.strictObject({
  type: z.literal('refusal'),
  refusal: z.enum([
    'malformed',
    'oversized',
    'version',
    'token',
    'replay',
    'purpose',
    'generation',
    'world-size',
    'rank',
    'duplicate',
    'busy',
  ]),
  message: z.string().max(1000),
});

export type Hello = z.output<typeof helloSchema>;
export type Challenge = z.output<typeof challengeSchema>;
export type Proof = z.output<typeof proofSchema>;
export type Accepted = z.output<typeof acceptedSchema>;
export type Refusal = z.output<typeof refusalSchema>;
export type HandshakeMessage = Hello | Challenge | Proof | Accepted | Refusal;

export const ACCEPTED: Accepted = { type: 'accepted' };

export function encodeHandshake(message: HandshakeMessage): Uint8Array {
  return Buffer.from(JSON.stringify(message), 'utf8');
}

/** @throws HandshakeError 'oversized', 'malformed' or 'version' */
export function decodeHello(bytes: Uint8Array): Hello {
  const value = parseJson(bytes);
  const version = z.looseObject({ protocol: z.literal('lockstep'), version: z.number() }).safeParse(value);
  if (version.success && version.data.version !== PROTOCOL_VERSION) {
    throw new HandshakeError(
      'version',
      `it speaks version ${version.data.version} of Lockstep's protocol, this process speaks version ${PROTOCOL_VERSION}. Install the same version of lockstep for all ranks.`,
    );
  }
  return parse(helloSchema, value);
}

/** @throws HandshakeError 'malformed', 'oversized', or what the server said where it refused */
export function decodeChallenge(bytes: Uint8Array): Challenge {
  return parse(challengeSchema, unlessRefused(bytes));
}

/** @throws HandshakeError 'malformed', 'oversized', or what the client said where it refused */
export function decodeProof(bytes: Uint8Array): Proof {
  return parse(proofSchema, unlessRefused(bytes));
}

/** @throws HandshakeError 'malformed', 'oversized', or what the server said where it refused */
export function decodeAccepted(bytes: Uint8Array): Accepted {
  return parse(acceptedSchema, unlessRefused(bytes));
}

/** The client's first message, with a fresh nonce. */
export function createHello(claims: HandshakeClaims): Hello {
  const { purpose, generation, rank, worldSize, peerRank } = claims;
  const fresh = randomBytes(NONCE_BYTES).toString('base64url');
  const protocol = 'lockstep' as const;
  const version = PROTOCOL_VERSION;
  return { type: 'hello', protocol, version, purpose, generation, rank, worldSize, peerRank, nonce: fresh };
}

/** The server's answer, with a fresh nonce and its proof. */
export function createChallenge(hello: Hello, token: string | undefined): Challenge {
  const fresh = randomBytes(NONCE_BYTES).toString('base64url');
  return { type: 'challenge', nonce: fresh, proof: prove('server', hello, fresh, token) };
}

/**
 * The client's answer, once the server has proved itself.
 * @throws HandshakeError 'token'
 */
export function answerChallenge(hello: Hello, challenge: Challenge, token: string | undefined): Proof {
  if (!isEqual(challenge.proof, prove('server', hello, challenge.nonce, token))) throw wrongToken(token);
  return { type: 'proof', proof: prove('client', hello, challenge.nonce, token) };
}

/** @throws HandshakeError 'token' */
export function checkProof(hello: Hello, challenge: Challenge, answer: Proof, token: string | undefined): void {
  if (!isEqual(answer.proof, prove('client', hello, challenge.nonce, token))) throw wrongToken(token);
}

/**
 * Whether a client that has proved itself belongs here.
 * @throws HandshakeError 'purpose', 'generation', 'world-size' or 'rank'
 */
export function checkClaims(hello: HandshakeClaims, expected: HandshakeExpectation): void {
  const who = `rank ${hello.rank}`;
  if (hello.purpose !== expected.purpose || hello.peerRank !== expected.ownRank) {
    const wanted = hello.peerRank === null ? 'the store' : `rank ${hello.peerRank}`;
    const found = expected.ownRank === null ? 'the store' : `rank ${expected.ownRank}`;
    throw new HandshakeError(
      'purpose',
      `${who} wanted to reach ${wanted} and came to ${found}. Its address is out of date; restart the job.`,
    );
  }
  if (hello.generation !== expected.generation) {
    const age = hello.generation < expected.generation ? 'an earlier' : 'a later';
    throw new HandshakeError(
      'generation',
      `${who} belongs to ${age} start of the job (generation ${hello.generation}, this is generation ${expected.generation}). End processes that a restart left behind.`,
    );
  }
  if (expected.worldSize !== undefined && hello.worldSize !== expected.worldSize) {
    throw new HandshakeError(
      'world-size',
      `${who} was started for a world of ${hello.worldSize} ranks, this job has ${expected.worldSize}. Set the same WORLD_SIZE for all ranks.`,
      { ranks: [hello.rank] },
    );
  }
  if (hello.rank >= hello.worldSize || hello.rank === expected.ownRank) {
    throw new HandshakeError(
      'rank',
      hello.rank === expected.ownRank
        ? `two processes have rank ${hello.rank}. Give each process a RANK of its own.`
        : `rank ${hello.rank} is outside a world of ${hello.worldSize} ranks. Set RANK to 0 to ${hello.worldSize - 1}.`,
    );
  }
}

/** What the refusing side sends. */
export function refusalOf(error: HandshakeError): Refusal {
  return { type: 'refusal', refusal: error.refusal, message: error.message.slice(0, 1000) };
}

/** Without a token the proofs hold nothing together but the job's own mistakes: any local process can make them. */
const KEY_WITHOUT_TOKEN = 'lockstep: this job has no token';

function prove(role: 'client' | 'server', hello: Hello, serverNonce: string, token: string | undefined): string {
  const { version, purpose, generation, rank, worldSize, peerRank } = hello;
  const claims = [role, version, purpose, generation, rank, worldSize, peerRank, hello.nonce, serverNonce];
  return createHmac('sha256', token ?? KEY_WITHOUT_TOKEN)
    .update(JSON.stringify(claims))
    .digest('base64url');
}

function isEqual(given: string, expected: string): boolean {
  const a = Buffer.from(given);
  const b = Buffer.from(expected);
  return a.length === b.length && timingSafeEqual(a, b);
}

function wrongToken(own: string | undefined): HandshakeError {
  return new HandshakeError(
    'token',
    `the two processes do not hold the same job token (the one that says this has ${own === undefined ? 'none' : 'one'}). Set the same LOCKSTEP_JOB_TOKEN or LOCKSTEP_JOB_TOKEN_FILE for all ranks.`,
  );
}

function unlessRefused(bytes: Uint8Array): unknown {
  const value = parseJson(bytes);
  const refusal = refusalSchema.safeParse(value);
  if (!refusal.success) return value;
  // Text of a process that may not have proved itself: no control characters into logs and terminals.
  const message = refusal.data.message.replace(/[^\P{C}]/gu, '?');
  throw new HandshakeError(refusal.data.refusal, message);
}

function parseJson(bytes: Uint8Array): unknown {
  if (bytes.byteLength > MAX_HANDSHAKE_BYTES) {
    throw new HandshakeError(
      'oversized',
      `a handshake message of ${bytes.byteLength} bytes; at most ${MAX_HANDSHAKE_BYTES} are read from a process that has not proved the job token.`,
    );
  }
  try {
    return JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(bytes)) as unknown;
  } catch (error) {
    throw malformed('not JSON', error);
  }
}

function parse<S extends z.ZodType>(schema: S, value: unknown): z.output<S> {
  const result = schema.safeParse(value);
  if (result.success) return result.data;
  const paths = result.error.issues.map((issue) =>
    issue.path.length === 0 ? 'message' : issue.path.map(String).join('.'),
  );
  throw malformed(`wrong ${[...new Set(paths)].join(', ').slice(0, 100)}`, undefined);
}

function malformed(what: string, cause: unknown): HandshakeError {
  return new HandshakeError(
    'malformed',
    `it does not speak Lockstep's handshake (${what}). Something else connected here, or a proxy stands between.`,
    { cause },
  );
}
