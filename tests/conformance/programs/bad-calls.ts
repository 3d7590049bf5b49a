/** All calls that every backend refuses, by name; those about buffers are in bad-buffers.ts. */
import type { Backend, P2pOp } from '../../../src/backend/backend';
import type { ReduceOp } from '../../../src/core/reduce-op';
import { as, BAD_CALLER, BAD_CALLS_SIZE, type BadCall, type BadCalls, many, one, opOf } from './bad-call';
import { badBufferCalls } from './bad-buffers';

const badRanks: Record<string, unknown> = {
  'the size of the group': BAD_CALLS_SIZE,
  '-1': -1,
  '1.5': 1.5,
  NaN,
  Infinity,
  'a string': '0',
  undefined,
};

const rankTakers: Record<string, (backend: Backend, rank: number) => PromiseLike<unknown>> = {
  'broadcast from': (backend, rank) => backend.broadcast(one(), rank),
  'reduce to': (backend, rank) => backend.reduce(one(), one(), rank, 'Sum'),
  'gather to': (backend, rank) => backend.gather(one(), many(3), rank),
  'scatter from': (backend, rank) => backend.scatter(many(3), one(), rank),
  'send to': (backend, rank) => backend.send(one(), rank),
  'recv from': (backend, rank) => backend.recv(one(), rank),
  'batch with a send to': (backend, peer) => backend.batch([{ op: 'send', data: one(), peer }]),
  'batch with a recv from': (backend, peer) => backend.batch([{ op: 'recv', data: one(), peer }]),
  'split with': (backend, rank) => backend.split([0, rank]),
};

function badRankCalls(): Record<string, BadCall> {
  const calls: Record<string, BadCall> = {};
  for (const [taker, call] of Object.entries(rankTakers)) {
    for (const [name, rank] of Object.entries(badRanks)) {
      calls[`${taker} rank ${name}`] = {
        call: (backend) => call(backend, as(rank)),
        message: new RegExp(`${opOf(taker)}[^]*${String(rank)}`),
      };
    }
  }
  return calls;
}

const reduceTakers: Record<string, (backend: Backend, op: ReduceOp) => PromiseLike<unknown>> = {
  allReduce: (backend, op) => backend.allReduce(one(), op),
  reduceScatter: (backend, op) => backend.reduceScatter(many(3), one(), op),
  reduce: (backend, op) => backend.reduce(one(), one(), BAD_CALLER, op),
};

function reduceOpCalls(): Record<string, BadCall> {
  const calls: Record<string, BadCall> = {};
  for (const [name, call] of Object.entries(reduceTakers)) {
    for (const op of ['BitAnd', 'BitOr', 'BitXor'] as const) {
      calls[`${name} by ${op} of floats`] = {
        call: (b) => call(b, op),
        message: new RegExp(`${op}[^]*integers[^]*float32`),
      };
    }
    for (const op of ['sum', 'Mean', '', undefined, null, 'constructor']) {
      calls[`${name} by '${op}'`] = { call: (b) => call(b, as(op)), message: /Sum, Product, Min, Max, Average/ };
    }
  }
  return calls;
}

function tagCalls(): Record<string, BadCall> {
  const calls: Record<string, BadCall> = {};
  for (const tag of [-1, 0.5, NaN, Infinity, '1']) {
    const message = new RegExp(`tag[^]*${String(tag)}`);
    const parts: P2pOp[] = [{ op: 'send', data: one(), peer: 0, tag: as(tag) }];
    calls[`send with tag ${tag}`] = { call: (b) => b.send(one(), 0, as(tag)), message };
    calls[`recv with tag ${tag}`] = { call: (b) => b.recv(one(), 0, as(tag)), message };
    calls[`batch with tag ${tag}`] = { call: (b) => b.batch(parts), message };
  }
  return calls;
}

function timeoutCalls(): Record<string, BadCall> {
  const calls: Record<string, BadCall> = {};
  for (const timeoutMs of [0, -1, NaN, Infinity, '10']) {
    const options = { timeoutMs: as<number>(timeoutMs) };
    const takers: Record<string, (backend: Backend) => PromiseLike<unknown>> = {
      allReduce: (b) => b.allReduce(one(), 'Sum', options),
      broadcast: (b) => b.broadcast(one(), 0, options),
      allGather: (b) => b.allGather(one(), many(3), options),
      reduceScatter: (b) => b.reduceScatter(many(3), one(), 'Sum', options),
      reduce: (b) => b.reduce(one(), one(), BAD_CALLER, 'Sum', options),
      gather: (b) => b.gather(one(), many(3), BAD_CALLER, options),
      scatter: (b) => b.scatter(many(3), one(), BAD_CALLER, options),
      allToAll: (b) => b.allToAll(many(3), many(3), options),
      barrier: (b) => b.barrier(options),
      send: (b) => b.send(one(), 0, 0, options),
      recv: (b) => b.recv(one(), 0, 0, options),
      batch: (b) => b.batch([{ op: 'send', data: one(), peer: 0 }], options),
      split: (b) => b.split([0, 1, 2], options),
    };
    for (const [name, call] of Object.entries(takers)) {
      calls[`${name} with timeoutMs ${timeoutMs}`] = { call, message: new RegExp(`timeoutMs[^]*${timeoutMs}`) };
    }
  }
  return calls;
}

export const badCalls: BadCalls = {
  ...badRankCalls(),
  ...badBufferCalls,
  ...reduceOpCalls(),
  ...tagCalls(),
  ...timeoutCalls(),
  'send to itself': { call: (b) => b.send(one(), BAD_CALLER), message: /send[^]*itself|self/ },
  'recv from itself': { call: (b) => b.recv(one(), BAD_CALLER), message: /recv[^]*itself|self/ },
  'batch with a send to itself': {
    call: (b) => b.batch([{ op: 'send', data: one(), peer: BAD_CALLER }]),
    message: /itself|self/,
  },
  'batch of something else': {
    call: (b) => b.batch([{ op: as('sendrecv'), data: one(), peer: 0 }]),
    message: /batch[^]*sendrecv/,
  },
  'batch whose last part is wrong': {
    call: (b) =>
      b.batch([
        { op: 'send', data: one(), peer: 0 },
        { op: 'recv', data: one(), peer: 7 },
      ]),
    message: /batch[^]*7/,
  },
  'split of nobody': { call: (b) => b.split([]), message: /split[^]*at least one/ },
  'split of something else': { call: (b) => b.split(as(2)), message: /split[^]*2/ },
  'barrier with an unknown option': {
    call: (b) => b.barrier(as({ timeoutms: 5 })),
    message: /unknown key 'timeoutms'/,
  },
  'allReduce with an option of another call': {
    call: (b) => b.allReduce(one(), 'Sum', as({ counts: [1, 1, 1] })),
    message: /unknown key 'counts'/,
  },
  'split with a rank twice': { call: (b) => b.split([0, 1, 1]), message: /split[^]*1/ },
};
