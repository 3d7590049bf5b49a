/** What ranks of a group tell each other beside data: Control frames, as JSON. */
import { z } from 'zod';
import { toWire, type WireError } from '../../core/error-wire';
import { InvalidArgumentError } from '../../core/errors';
import { CHUNK_BYTES } from './frame';

/** Only the outer form is checked: peers have proven who they are, and fromWire takes what it finds. */
const wireErrorSchema = z.custom<WireError>(
  (value) => typeof value === 'object' && value !== null && typeof (value as WireError).message === 'string',
);
const sequenceSchema = z.int().nonnegative();

const controlSchema = z.discriminatedUnion('type', [
  /** The group has failed. `cause` is what later ClosedErrors name; null: `error` itself. */
  z.strictObject({
    type: z.literal('poison'),
    error: wireErrorSchema,
    cause: wireErrorSchema.nullable(),
    isToldOnce: z.boolean(),
  }),
  /** The sender has closed the group; it has completed all collectives below `completed`. */
  z.strictObject({ type: z.literal('closed'), completed: sequenceSchema }),
  /** The sender is going down because of `error`; of all its groups. */
  z.strictObject({ type: z.literal('lost'), error: wireErrorSchema }),
  /** What did you call as collective `sequence`, and where do you wait? null: only where. */
  z.strictObject({ type: z.literal('question'), id: sequenceSchema, sequence: sequenceSchema.nullable() }),
  /** `called`, null: not yet; and `waitsIn`, null: nowhere. A rank whose group has failed answers with poison. */
  z.strictObject({
    type: z.literal('answer'),
    id: sequenceSchema,
    called: z.strictObject({ description: z.string(), sourceLine: z.string().optional() }).nullable(),
    waitsIn: z.string().nullable(),
  }),
]);

export type ControlMessage = z.output<typeof controlSchema>;

export function encodeControl(message: ControlMessage): Uint8Array {
  const bytes = Buffer.from(JSON.stringify(message), 'utf8');
  if (bytes.byteLength <= CHUNK_BYTES) return bytes;
  return Buffer.from(JSON.stringify(shortened(message)), 'utf8');
}

/** @throws InvalidArgumentError for anything that no rank of this version sends */
export function decodeControl(bytes: Uint8Array): ControlMessage {
  let value: unknown;
  try {
    value = JSON.parse(Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString('utf8'));
  } catch (error) {
    throw new InvalidArgumentError('a control message is not JSON', { cause: error });
  }
  const parsed = controlSchema.safeParse(value);
  if (parsed.success) return parsed.data;
  throw new InvalidArgumentError(`a control message is malformed: ${z.prettifyError(parsed.error)}`);
}

/** Longer than any message of ours; a user's error may carry a document. */
const MAX_TEXT = 16 * 1024;

/** The same message small enough for one frame: errors without stacks, causes and most of a long text. */
function shortened(message: ControlMessage): ControlMessage {
  const shorten = (error: WireError): WireError => ({
    ...toWire(new Error()),
    ...error,
    message: error.message.slice(0, MAX_TEXT),
    stack: null,
    cause: null,
    errors: null,
  });
  switch (message.type) {
    case 'poison':
      return { ...message, error: shorten(message.error), cause: message.cause && shorten(message.cause) };
    case 'lost':
      return { ...message, error: shorten(message.error) };
    case 'answer':
      return {
        ...message,
        called: message.called && {
          ...message.called,
          description: message.called.description.slice(0, MAX_TEXT),
        },
        waitsIn: message.waitsIn?.slice(0, MAX_TEXT) ?? null,
      };
    case 'closed':
    case 'question':
      return message;
  }
}
