import fc from 'fast-check';
import {
  CHUNK_BYTES,
  FrameKind,
  HEADER_BYTES,
  PROTOCOL_VERSION,
  decodeHeader,
  encodeHeader,
  type FrameHeader,
} from '../../../src/backend/grpc/frame';
import { FrameReader } from '../../../src/backend/grpc/frame-reader';
import { isLockstepError } from '../../../src/core/errors';
import { count } from '../../helpers/counts';

const runs = (name: string): { numRuns: number; seed: number } => ({ numRuns: count(name, 500, 10_000), seed: 3 });

const word = fc.integer({ min: 0, max: 0xffffffff });
const kinds = Object.values(FrameKind);

/** Payloads are small so that many frames fit; their length is what a reader goes by. */
const frame = fc
  .record({
    kind: fc.constantFrom(...kinds),
    isPointToPoint: fc.boolean(),
    groupHigh: word,
    groupLow: word,
    call: word,
    message: word,
    fingerprintHigh: word,
    fingerprintLow: word,
    payload: fc.uint8Array({ maxLength: 300 }),
    rest: fc.integer({ min: 0, max: 2 ** 52 }),
  })
  .map(({ payload, rest, ...fields }) => ({
    header: { ...fields, payloadBytes: payload.length, messageBytes: payload.length + rest } satisfies FrameHeader,
    payload,
  }));

function encode(header: FrameHeader, payload: Uint8Array = new Uint8Array(0)): Buffer {
  const bytes = Buffer.alloc(HEADER_BYTES + payload.length);
  encodeHeader(header, bytes);
  bytes.set(payload, HEADER_BYTES);
  return bytes;
}

/** A reader that keeps what comes out of it, and how much memory it was asked for. */
function collectingReader(): {
  reader: FrameReader;
  frames: { header: FrameHeader; payload: Uint8Array }[];
  asked: () => number;
} {
  const frames: { header: FrameHeader; payload: Uint8Array }[] = [];
  let target = new Uint8Array(0);
  let asked = 0;
  const reader = new FrameReader({
    onHeader: (header) => {
      asked += header.payloadBytes;
      target = new Uint8Array(header.payloadBytes);
      return target;
    },
    onPayload: (header) => frames.push({ header, payload: target }),
  });
  return { reader, frames, asked: () => asked };
}

/** `bytes` cut at the given places. */
function slices(bytes: Buffer, cuts: readonly number[]): Buffer[] {
  const places = [...new Set([0, ...cuts.map((cut) => cut % (bytes.length + 1)), bytes.length])].sort((a, b) => a - b);
  return places.slice(1).map((end, index) => bytes.subarray(places[index], end));
}

describe('the header of a frame', () => {
  test('comes back as it was written', () => {
    fc.assert(
      fc.property(frame, ({ header }) => {
        expect(decodeHeader(encode(header))).toEqual(header);
      }),
      runs('frame header, round trip'),
    );
  });

  const header: FrameHeader = {
    kind: FrameKind.Data,
    isPointToPoint: false,
    groupHigh: 0,
    groupLow: 0,
    call: 0,
    message: 0,
    fingerprintHigh: 0,
    fingerprintLow: 0,
    messageBytes: 8,
    payloadBytes: 8,
  };

  test.each<[string, (bytes: Buffer) => void, string]>([
    ['another version', (bytes) => bytes.writeUInt8(9, 0), `protocol version 9, expected ${PROTOCOL_VERSION}`],
    ['kind 0', (bytes) => bytes.writeUInt8(0, 1), 'unknown kind 0'],
    ['kind 6', (bytes) => bytes.writeUInt8(6, 1), 'unknown kind 6'],
    ['an unknown flag', (bytes) => bytes.writeUInt8(2, 2), 'reserved bits are set'],
    ['a reserved byte', (bytes) => bytes.writeUInt8(1, 3), 'reserved bits are set'],
    ['a payload of 4 GiB', (bytes) => bytes.writeUInt32LE(0xffffffff, 4), `at most ${CHUNK_BYTES} are allowed`],
    ['a message shorter than its payload', (bytes) => bytes.writeDoubleLE(7, 32), 'message of 7 bytes'],
    ['a message of NaN bytes', (bytes) => bytes.writeDoubleLE(NaN, 32), 'message of NaN bytes'],
    ['a message of -1 bytes', (bytes) => bytes.writeDoubleLE(-1, 32), 'message of -1 bytes'],
  ])('is refused with %s', (_what, spoil, expected) => {
    const bytes = encode(header);
    spoil(bytes);
    expect(() => decodeHeader(bytes)).toThrow(expected);
  });
});

describe('a reader of frames', () => {
  test('gives the same frames however the bytes are cut', () => {
    fc.assert(
      fc.property(fc.array(frame, { maxLength: 8 }), fc.array(fc.nat(), { maxLength: 20 }), (frames, cuts) => {
        const bytes = Buffer.concat(frames.map(({ header, payload }) => encode(header, payload)));
        const collected = collectingReader();
        for (const slice of slices(bytes, cuts)) {
          const scratch = Buffer.from(slice);
          collected.reader.push(scratch);
          scratch.fill(0xee); // slices are not kept
        }
        expect(collected.reader.isBetweenFrames).toBe(true);
        expect(collected.frames.map(({ header }) => header)).toEqual(frames.map(({ header }) => header));
        collected.frames.forEach(({ payload }, index) => expect(payload).toEqual(frames[index]?.payload));
      }),
      runs('frame reader, any cut'),
    );
  });

  test('answers garbage with one typed error, and asks for no memory beyond a chunk', () => {
    fc.assert(
      fc.property(
        fc.array(frame, { maxLength: 2 }),
        fc.uint8Array({ minLength: HEADER_BYTES, maxLength: 400 }),
        fc.array(fc.nat(), { maxLength: 10 }),
        (frames, garbage, cuts) => {
          const good = Buffer.concat(frames.map(({ header, payload }) => encode(header, payload)));
          const collected = collectingReader();
          const errors: unknown[] = [];
          for (const slice of slices(Buffer.concat([good, garbage]), cuts)) {
            try {
              collected.reader.push(slice);
            } catch (error) {
              errors.push(error);
            }
          }
          expect(errors.length).toBeLessThanOrEqual(1);
          for (const error of errors) expect(isLockstepError(error, 'LOCKSTEP_INVALID_ARGUMENT')).toBe(true);
          expect(collected.frames.length).toBeGreaterThanOrEqual(frames.length);
          expect(collected.asked()).toBeLessThanOrEqual(good.length + garbage.length + CHUNK_BYTES);
        },
      ),
      runs('frame reader, garbage'),
    );
  });

  test('survives any change of any byte of a good stream, or says that it is malformed', () => {
    fc.assert(
      fc.property(fc.array(frame, { minLength: 1, maxLength: 4 }), fc.nat(), fc.nat(255), (frames, place, value) => {
        const bytes = Buffer.concat(frames.map(({ header, payload }) => encode(header, payload)));
        bytes[place % bytes.length] = value;
        const collected = collectingReader();
        try {
          collected.reader.push(bytes);
        } catch (error) {
          expect((error as Error).message).toMatch(/^malformed frame: /);
        }
      }),
      runs('frame reader, one byte changed'),
    );
  });

  test('knows that it is in the middle of a frame', () => {
    const { reader } = collectingReader();
    reader.push(new Uint8Array([PROTOCOL_VERSION]));
    expect(reader.isBetweenFrames).toBe(false);
  });

  test('passes on what its listener throws, and is silent afterwards', () => {
    const reader = new FrameReader({
      onHeader: () => {
        throw new Error('no room');
      },
      onPayload: () => undefined,
    });
    const [sample] = fc.sample(frame, { numRuns: 1, seed: 1 });
    const bytes = encode(sample?.header as FrameHeader, sample?.payload);
    expect(() => reader.push(bytes)).toThrow('no room');
    expect(() => reader.push(bytes)).not.toThrow();
  });
});
