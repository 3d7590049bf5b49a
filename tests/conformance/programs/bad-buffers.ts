/** Calls whose buffers are wrong: of no dtype, of another length or dtype than the rest of the call, or overlapping. */
import type { AllToAllOptions, Backend } from '../../../src/backend/backend';
import type { DataBuffer } from '../../../src/core/dtype';
import { as, BAD_CALLER, type BadCall, type BadCalls, many, one, opOf } from './bad-call';

function detached(): Float32Array {
  const data = many(4);
  structuredClone(data, { transfer: [data.buffer as ArrayBuffer] });
  return data;
}

const dataTakers: Record<string, (backend: Backend, data: DataBuffer) => PromiseLike<unknown>> = {
  'allReduce of': (backend, data) => backend.allReduce(data, 'Sum'),
  'broadcast of': (backend, data) => backend.broadcast(data, 0),
  'allGather of': (backend, data) => backend.allGather(data, many(3)),
  'allGather into': (backend, data) => backend.allGather(one(), data),
  'reduceScatter of': (backend, data) => backend.reduceScatter(data, one(), 'Sum'),
  'reduceScatter into': (backend, data) => backend.reduceScatter(many(3), data, 'Sum'),
  'reduce of': (backend, data) => backend.reduce(data, one(), BAD_CALLER, 'Sum'),
  'reduce into': (backend, data) => backend.reduce(one(), data, BAD_CALLER, 'Sum'),
  'gather of': (backend, data) => backend.gather(data, many(3), BAD_CALLER),
  'gather into': (backend, data) => backend.gather(one(), data, BAD_CALLER),
  'scatter of': (backend, data) => backend.scatter(data, one(), BAD_CALLER),
  'scatter into': (backend, data) => backend.scatter(many(3), data, BAD_CALLER),
  'allToAll of': (backend, data) => backend.allToAll(data, many(3)),
  'allToAll into': (backend, data) => backend.allToAll(many(3), data),
  'send of': (backend, data) => backend.send(data, 0),
  'recv into': (backend, data) => backend.recv(data, 0),
  'batch with a send of': (backend, data) => backend.batch([{ op: 'send', data, peer: 0 }]),
  'batch with a recv into': (backend, data) => backend.batch([{ op: 'recv', data, peer: 0 }]),
};

function badDataCalls(): Record<string, BadCall> {
  const calls: Record<string, BadCall> = {};
  const bad: Record<string, [() => unknown, string]> = {
    'a plain Uint16Array': [() => new Uint16Array(1), 'Uint16Array[^]*structuredClone'],
    'a Uint32Array': [() => new Uint32Array(1), 'Uint32Array'],
    'an array': [() => [1], 'Array'],
    'a detached array': [detached, 'detached|transferred'],
    nothing: [() => null, 'null|expected'],
  };
  for (const [taker, call] of Object.entries(dataTakers)) {
    for (const [name, [make, text]] of Object.entries(bad)) {
      calls[`${taker} ${name}`] = {
        call: (backend) => call(backend, as(make())),
        message: new RegExp(`${opOf(taker)}[^]*(${text})`),
      };
    }
  }
  return calls;
}

const exchange = (backend: Backend, length: number, options: AllToAllOptions): PromiseLike<unknown> =>
  backend.allToAll(many(length), many(length), options);

const sizeCalls: Record<string, BadCall> = {
  'allGather into too little': { call: (b) => b.allGather(many(2), many(5)), message: /allGather[^]*6[^]*5|5[^]*6/ },
  'allGather into too much': { call: (b) => b.allGather(many(2), many(7)), message: /allGather[^]*6[^]*7|7[^]*6/ },
  'reduceScatter of what does not divide': {
    call: (b) => b.reduceScatter(many(7), many(2), 'Sum'),
    message: /6[^]*7|7[^]*6/,
  },
  'reduceScatter into too much': {
    call: (b) => b.reduceScatter(many(6), many(3), 'Sum'),
    message: /6[^]*9|9[^]*6|3[^]*2|2[^]*3/,
  },
  'reduce into another length': {
    call: (b) => b.reduce(many(2), many(3), BAD_CALLER, 'Sum'),
    message: /reduce[^]*(2[^]*3|3[^]*2)/,
  },
  'gather into too little': {
    call: (b) => b.gather(many(2), many(5), BAD_CALLER),
    message: /gather[^]*(6[^]*5|5[^]*6)/,
  },
  'scatter of too much': {
    call: (b) => b.scatter(many(7), many(2), BAD_CALLER),
    message: /scatter[^]*(6[^]*7|7[^]*6)/,
  },
  'reduce without recv on its destination': {
    call: (b) => b.reduce(one(), undefined, BAD_CALLER, 'Sum'),
    message: /reduce[^]*recv/,
  },
  'gather without recv on its destination': {
    call: (b) => b.gather(one(), undefined, BAD_CALLER),
    message: /gather[^]*recv/,
  },
  'scatter without send on its source': {
    call: (b) => b.scatter(undefined, one(), BAD_CALLER),
    message: /scatter[^]*send/,
  },
  'allToAll of what does not divide': { call: (b) => b.allToAll(many(7), many(7)), message: /allToAll[^]*7/ },
  'allToAll of other lengths': {
    call: (b) => b.allToAll(many(6), many(9)),
    message: /allToAll[^]*\[2, 2, 2\][^]*\[3, 3, 3\]/,
  },
  'reduce with recv on a rank that is not the destination': {
    call: (b) => b.reduce(one(), one(), 0, 'Sum'),
    message: /reduce[^]*recv[^]*rank 0/,
  },
  'gather with recv on a rank that is not the destination': {
    call: (b) => b.gather(one(), many(3), 0),
    message: /gather[^]*recv[^]*rank 0/,
  },
  'scatter with send on a rank that is not the source': {
    call: (b) => b.scatter(many(3), one(), 0),
    message: /scatter[^]*send[^]*rank 0/,
  },
  'allToAll with too few counts': {
    call: (b) => exchange(b, 3, { sendCounts: [1, 2], recvCounts: [1, 1, 1] }),
    message: /sendCounts/,
  },
  'allToAll with counts that do not add up': {
    call: (b) => exchange(b, 3, { sendCounts: [1, 1, 2], recvCounts: [1, 1, 1] }),
    message: /sendCounts[^]*4|4[^]*sendCounts/,
  },
  'allToAll with recvCounts that do not add up': {
    call: (b) => exchange(b, 3, { sendCounts: [1, 1, 1], recvCounts: [1, 1, 2] }),
    message: /recvCounts[^]*4|4[^]*recvCounts/,
  },
  'allToAll with a negative count': {
    call: (b) => exchange(b, 3, { sendCounts: [4, -1, 0], recvCounts: [1, 1, 1] }),
    message: /sendCounts[^]*-1/,
  },
  'allToAll with a fraction for a count': {
    call: (b) => exchange(b, 3, { sendCounts: [1.5, 1.5, 0], recvCounts: [1, 1, 1] }),
    message: /sendCounts[^]*1\.5/,
  },
  'allGather with too many counts': {
    call: (b) => b.allGather(one(), many(4), { counts: [1, 1, 1, 1] }),
    message: /counts/,
  },
  'allGather with counts that send does not have': {
    call: (b) => b.allGather(one(), many(4), { counts: [1, 2, 1] }),
    message: /allGather[^]*(1[^]*2|2[^]*1)/,
  },
  'allGather with counts that do not fill recv': {
    call: (b) => b.allGather(one(), many(4), { counts: [1, 1, 1] }),
    message: /3[^]*4|4[^]*3/,
  },
  'reduceScatter with a negative count': {
    call: (b) => b.reduceScatter(many(3), one(), 'Sum', { counts: [3, 1, -1] }),
    message: /counts[^]*-1/,
  },
  'reduceScatter with NaN for a count': {
    call: (b) => b.reduceScatter(many(3), one(), 'Sum', { counts: [1, 1, NaN] }),
    message: /counts[^]*NaN/,
  },
};

/** Two buffers of this length whose memory overlaps by all but one element. */
function overlapping(length: number): [Float32Array, Float32Array] {
  const memory = many(length + 1);
  return [memory.subarray(0, length), memory.subarray(1)];
}

/** In place means this rank's own part; every other sharing would be overwritten while it is read. */
const overlapCalls: Record<string, BadCall> = {
  'allGather of the part of another rank': {
    call: (b) => {
      const recv = many(6);
      return b.allGather(recv.subarray(0, 2), recv);
    },
    message: /share memory/,
  },
  'allGather of half its own part': {
    call: (b) => {
      const recv = many(6);
      return b.allGather(recv.subarray(3, 5), recv);
    },
    message: /share memory/,
  },
  'reduceScatter into the part of another rank': {
    call: (b) => {
      const send = many(6);
      return b.reduceScatter(send, send.subarray(4), 'Sum');
    },
    message: /share memory/,
  },
  'reduce into shifted memory': {
    call: (b) => b.reduce(...overlapping(4), BAD_CALLER, 'Sum'),
    message: /share memory/,
  },
  'gather into memory that overlaps': {
    call: (b) => {
      const recv = many(6);
      return b.gather(recv.subarray(1, 3), recv, BAD_CALLER);
    },
    message: /share memory/,
  },
  'scatter into memory that overlaps': {
    call: (b) => {
      const send = many(6);
      return b.scatter(send, send.subarray(1, 3), BAD_CALLER);
    },
    message: /share memory/,
  },
  'allToAll in place': {
    call: (b) => {
      const data = many(3);
      return b.allToAll(data, data);
    },
    message: /share memory/,
  },
};

const wide = (length: number): Float64Array => new Float64Array(length);

const dtypeCalls: Record<string, BadCall> = Object.fromEntries(
  Object.entries<(backend: Backend) => PromiseLike<unknown>>({
    allGather: (b) => b.allGather(one(), wide(3)),
    reduceScatter: (b) => b.reduceScatter(many(3), wide(1), 'Sum'),
    reduce: (b) => b.reduce(one(), wide(1), BAD_CALLER, 'Sum'),
    gather: (b) => b.gather(one(), wide(3), BAD_CALLER),
    scatter: (b) => b.scatter(many(3), wide(1), BAD_CALLER),
    allToAll: (b) => b.allToAll(many(3), wide(3)),
  }).map(([op, call]) => [
    `${op} from float32 to float64`,
    { call, message: new RegExp(`${op}[^]*(float32[^]*float64|float64[^]*float32)`) },
  ]),
);

export const badBufferCalls: BadCalls = {
  ...badDataCalls(),
  ...sizeCalls,
  ...overlapCalls,
  ...dtypeCalls,
};
