/** The server's end of one process's session with the store: handshake, then requests. */
import type { ServerDuplexStream } from '@grpc/grpc-js';
import { systemClock } from '../../core/clock';
import { CollectiveTimeoutError, InvalidArgumentError, asError } from '../../core/errors';
import { LATE_KEY_ADVICE } from '../backend-store';
import { waitRefusal, type StoreTable } from '../store-table';
import { fromFailure, toFailure } from './failure';
import { HandshakeError, MAX_HANDSHAKE_BYTES, encodeHandshake, refusalOf, type Hello } from './handshake';
import { acceptHandshake, type AcceptOptions } from './handshake-exchange';
import type { PeerAddress } from './endpoint';
import type { Membership } from './membership';
import { MessageQueue } from './message-queue';
import {
  addressFromWire,
  storeCodec,
  type ClientMessage,
  type Failure,
  type Request,
  type Result,
  type ServerMessage,
} from './proto';

/** Room for protobuf's own bytes around a handshake message. */
const ENVELOPE_BYTES = 64;

/** What all sessions of a store share. */
export interface StoreJob {
  readonly handshake: AcceptOptions;
  readonly handshakeTimeoutMs: number;
  readonly membership: Membership;
  readonly table: StoreTable;
  /** The process proved that it belongs to the job. */
  onOpen(session: StoreSession): void;
  /** The process was turned away, or sent what no process of ours sends. */
  onRefused(session: StoreSession, reason: Error): void;
  onClosed(session: StoreSession): void;
}

type Call = ServerDuplexStream<Buffer, Buffer>;

export class StoreSession {
  /** 'address:port' of the other end. */
  readonly peer: string;
  readonly #call: Call;
  readonly #job: StoreJob;
  readonly #codec = storeCodec();
  readonly #handshake = new MessageQueue();
  /** Gives up each request that waits. */
  readonly #pending = new Map<number, () => void>();
  #hello: Hello | undefined;
  #isOver = false;
  #hasJoined = false;

  constructor(call: Call, job: StoreJob) {
    this.#call = call;
    this.#job = job;
    this.peer = call.getPeer();
    call.on('data', (bytes: Buffer) => this.#receive(bytes));
    call.on('end', () => this.#lose('ended its session with the store without a goodbye'));
    call.on('cancelled', () => this.#lose('lost its connection to the store'));
    call.on('error', () => this.#lose('lost its connection to the store'));
    call.on('drain', () => call.resume()); // see #send
    const { handshakeTimeoutMs } = job;
    const timer = systemClock.schedule(
      () => this.#refuse(new HandshakeError('malformed', `no handshake within ${handshakeTimeoutMs} ms.`)),
      handshakeTimeoutMs,
    );
    const channel = {
      send: (handshake: Uint8Array) => this.#send({ handshake }),
      receive: () => this.#handshake.receive(),
    };
    void acceptHandshake(channel, job.handshake)
      .then(
        (hello) => this.#open(hello),
        // The exchange has told the process why.
        (thrown: unknown) => this.#end(() => job.onRefused(this, asError(thrown))),
      )
      .finally(() => timer.cancel());
  }

  /** The rank that the process proved to be; undefined before. */
  get rank(): number | undefined {
    return this.#hello?.rank;
  }

  /** The store closes: say goodbye after the answers that are under way. */
  close(): void {
    this.#send({ goodbye: {} });
    this.#end();
  }

  #open(hello: Hello): void {
    if (this.#isOver) return;
    this.#hello = hello;
    this.#job.onOpen(this);
  }

  #receive(bytes: Buffer): void {
    if (this.#isOver) return;
    try {
      this.#handle(this.#decode(bytes));
    } catch (thrown) {
      this.#refuse(asError(thrown));
    }
  }

  #decode(bytes: Buffer): ClientMessage {
    if (this.#hello === undefined && bytes.length > MAX_HANDSHAKE_BYTES + ENVELOPE_BYTES) {
      throw new HandshakeError(
        'oversized',
        `a message of ${bytes.length} bytes before the handshake; at most ${MAX_HANDSHAKE_BYTES} are read.`,
      );
    }
    try {
      return this.#codec.decodeClientMessage(bytes);
    } catch (thrown) {
      throw new HandshakeError('malformed', 'bytes that are no message of the store.', { cause: thrown });
    }
  }

  #handle(message: ClientMessage): void {
    if (this.#hello === undefined && 'handshake' in message) return this.#handshake.push(message.handshake);
    if (this.#hello !== undefined && 'request' in message) return this.#serve(message.request);
    if (this.#hello !== undefined && 'goodbye' in message) return this.#lose('closed its world');
    throw new HandshakeError('malformed', `${Object.keys(message)[0] ?? 'nothing'} is not what was to come next.`);
  }

  #serve(request: Request): void {
    const { id } = request;
    try {
      const result = this.#perform(request);
      if (result !== undefined) this.#answer(id, result);
    } catch (thrown) {
      this.#answer(id, { failure: toFailure(thrown) });
    }
  }

  /** The result, or undefined if it comes later. */
  #perform(request: Request): Result | undefined {
    const { table } = this.#job;
    if ('join' in request) return this.#join(request);
    if ('start' in request) return this.#start(request);
    if ('connected' in request) return this.#connected(request.connected.failure ?? undefined);
    if ('get' in request) {
      const { key } = request.get;
      return this.#whenPresent(request, [key], () => ({ value: { value: table.get(key) ?? Buffer.alloc(0) } }));
    }
    if ('wait' in request) return this.#whenPresent(request, request.wait.keys, () => ({ done: {} }));
    if ('set' in request) {
      table.set(request.set.key, request.set.value);
      return { done: {} };
    }
    if ('add' in request) return { number: table.add(request.add.key, request.add.amount) };
    if ('compareAndSet' in request) {
      const { key, expected, desired } = request.compareAndSet;
      return { compared: table.compareAndSet(key, expected, desired) };
    }
    if ('delete' in request) return { flag: table.delete(request.delete.key) };
    if ('numKeys' in request) return { number: table.count(request.numKeys.prefix) };
    throw new InvalidArgumentError('store: a request without an operation.');
  }

  #whenPresent({ id, timeoutMs }: Request, keys: readonly string[], read: () => Result): Result | undefined {
    const { table } = this.#job;
    if (table.missing(keys).length === 0) return read();
    // [Note: a look] The answer names what is missing, and nothing else.
    if (timeoutMs === 0) throw new CollectiveTimeoutError(table.describeMissing(keys));
    let giveUp = (): void => undefined;
    const settle = this.#hold(
      id,
      timeoutMs,
      () => giveUp(),
      () => {
        const message = `no value for ${table.describeMissing(keys)} within ${timeoutMs} ms. ${LATE_KEY_ADVICE}`;
        settle({ failure: toFailure(new CollectiveTimeoutError(message)) });
      },
    );
    try {
      giveUp = table.whenPresent(keys, () => settle(read()));
    } catch (thrown) {
      settle({ failure: toFailure(thrown) });
    }
    return undefined;
  }

  #join(request: Request & { readonly join: { readonly address: PeerAddress } }): undefined {
    const { id, timeoutMs } = request;
    const { membership } = this.#job;
    const rank = this.rank ?? -1;
    const settle = this.#hold(
      id,
      timeoutMs,
      () => undefined,
      () => membership.expire(rank, timeoutMs),
    );
    try {
      membership.join({ ...addressFromWire(request.join.address), rank }, (outcome) => {
        settle('code' in outcome ? { failure: toFailure(outcome) } : { members: { addresses: outcome } });
      });
      this.#hasJoined = true;
    } catch (thrown) {
      settle({ failure: toFailure(thrown) });
    }
  }

  #start({ id, timeoutMs }: Request): undefined {
    const { membership } = this.#job;
    const rank = this.#joinedRank();
    const settle = this.#hold(
      id,
      timeoutMs,
      () => undefined,
      () => membership.expireStart(rank, timeoutMs),
    );
    membership.whenStarted(rank, (failure) =>
      settle(failure === undefined ? { done: {} } : { failure: toFailure(failure) }),
    );
  }

  #connected(failure: Failure | undefined): Result {
    const { membership } = this.#job;
    const rank = this.#joinedRank();
    if (failure === undefined) membership.connected(rank);
    else membership.giveUp(rank, fromFailure(failure, 'connect', rank));
    return { done: {} };
  }

  #joinedRank(): number {
    if (this.rank !== undefined && this.#hasJoined) return this.rank;
    throw new InvalidArgumentError('store: a rank connects to the others after it has joined.');
  }

  /**
   * Keep a request until it is settled by the function that this returns.
   * @param giveUp the request is settled, or its process is gone
   */
  #hold(id: number, timeoutMs: number, giveUp: () => void, expire: () => void): (result: Result) => void {
    if (this.#pending.has(id)) throw new InvalidArgumentError(`store: another request with the id ${id} waits.`);
    const refusal = waitRefusal(this.#pending.size);
    if (refusal !== undefined) throw refusal;
    const timer = systemClock.schedule(expire, timeoutMs);
    const end = (): void => {
      this.#pending.delete(id);
      timer.cancel();
      giveUp();
    };
    this.#pending.set(id, end);
    return (result) => {
      if (this.#pending.get(id) !== end) return;
      end();
      this.#answer(id, result);
    };
  }

  #answer(id: number, result: Result): void {
    this.#send({ response: { id, ...result } });
  }

  #send(message: ServerMessage): void {
    if (this.#isOver) return;
    if (this.#call.write(this.#codec.encodeServerMessage(message))) return;
    // A process that does not read its answers is not read either, so that they cannot pile up here.
    this.#call.pause();
  }

  #refuse(reason: Error): void {
    if (reason instanceof HandshakeError && this.#hello === undefined) {
      this.#send({ handshake: encodeHandshake(refusalOf(reason)) });
    } else {
      this.#send({ refusal: toFailure(reason) });
    }
    this.#end(() => this.#job.onRefused(this, reason));
  }

  #lose(how: string): void {
    this.#end(() => {
      if (this.rank === undefined) this.#job.onRefused(this, new HandshakeError('malformed', `it ${how} too early.`));
      else if (this.#hasJoined) this.#job.membership.lose(this.rank, how);
    });
  }

  #end(tell: () => void = () => undefined): void {
    if (this.#isOver) return;
    this.#isOver = true;
    for (const giveUp of [...this.#pending.values()]) giveUp();
    this.#handshake.fail(new HandshakeError('malformed', 'the connection ended before the handshake did.'));
    this.#call.end();
    tell();
    this.#job.onClosed(this);
  }
}
