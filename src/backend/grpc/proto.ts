/** The messages of lockstep.proto, and their encoding. */
import { fromJSON, type MethodDefinition } from '@grpc/proto-loader';
import { invariant } from '../../core/invariant';
import type { PeerAddress } from './endpoint';
import { protoDescriptor } from './proto-descriptor';

export type ClientMessage =
  { readonly handshake: Uint8Array } | { readonly request: Request } | { readonly goodbye: Empty };

export type ServerMessage =
  | { readonly handshake: Uint8Array }
  | { readonly response: Response }
  | { readonly refusal: Failure }
  | { readonly goodbye: Empty };

export type Empty = Record<never, never>;

export type Operation =
  | { readonly join: { readonly address: PeerAddress } }
  | { readonly start: Empty }
  | { readonly connected: { readonly failure?: Failure | null | undefined } }
  | { readonly get: { readonly key: string } }
  | { readonly set: { readonly key: string; readonly value: Uint8Array } }
  | { readonly add: { readonly key: string; readonly amount: number } }
  | {
      readonly compareAndSet: {
        readonly key: string;
        readonly expected?: Uint8Array | undefined;
        readonly desired: Uint8Array;
      };
    }
  | { readonly wait: { readonly keys: readonly string[] } }
  | { readonly delete: { readonly key: string } }
  | { readonly numKeys: { readonly prefix: string } };

export type Request = { readonly id: number; readonly timeoutMs: number } & Operation;

export type Result =
  | { readonly failure: Failure }
  | { readonly members: { readonly addresses: readonly PeerAddress[] } }
  | { readonly value: { readonly value: Uint8Array } }
  | { readonly done: Empty }
  | { readonly number: number }
  | { readonly flag: boolean }
  | { readonly compared: { readonly isSet: boolean; readonly value?: Uint8Array | undefined } };

export type Response = { readonly id: number } & Result;

export interface Failure {
  readonly code: string;
  readonly message: string;
  readonly ranks: readonly number[];
}

interface Codec {
  readonly path: string;
  encodeClientMessage(message: ClientMessage): Buffer;
  decodeClientMessage(bytes: Buffer): ClientMessage;
  encodeServerMessage(message: ServerMessage): Buffer;
  decodeServerMessage(bytes: Buffer): ServerMessage;
}

let codec: Codec | undefined;

/** The encoding of the store's messages; built at the first use. Decoding throws for bytes that are no such message. */
export function storeCodec(): Codec {
  if (codec !== undefined) return codec;
  const method = methodOf('lockstep.v1.Store', 'Session');
  codec = {
    path: method.path,
    encodeClientMessage: (message) => method.requestSerialize(message),
    decodeClientMessage: (bytes) => method.requestDeserialize(bytes) as ClientMessage,
    encodeServerMessage: (message) => method.responseSerialize(message),
    decodeServerMessage: (bytes) => method.responseDeserialize(bytes) as ServerMessage,
  };
  return codec;
}

/** Path of the call that carries the frames of the data plane 'grpc'. */
export function peerLinkPath(): string {
  return methodOf('lockstep.v1.PeerLink', 'Frames').path;
}

function methodOf(service: string, name: string): MethodDefinition<object, object> {
  // Which member of a oneof is set shows in its key alone; a scalar that is zero is there all the same.
  const definition = fromJSON(protoDescriptor, {
    longs: Number,
    defaults: true,
    oneofs: false,
  })[service];
  invariant(definition !== undefined && !('format' in definition), `lockstep.proto has no service ${service}`);
  const method = definition[name];
  invariant(method !== undefined, `lockstep.proto has no method ${service}.${name}`);
  return method;
}

/** The address in a message: protobuf leaves out what is null here. */
export function addressFromWire(address: Partial<PeerAddress>): PeerAddress {
  const { rank = 0, hostId = '', grpc = null, unixSocket = null, tcpSocket = null } = address;
  return { rank, hostId, grpc, unixSocket, tcpSocket };
}
