/** The contract of the gRPC services, and its descriptor. */
import { addressFromWire, storeCodec, type ClientMessage, type ServerMessage } from '../../../src/backend/grpc/proto';
import { protoDescriptor } from '../../../src/backend/grpc/proto-descriptor';
import { generateDescriptor } from './proto-descriptor';

test('the checked-in descriptor is what lockstep.proto gives; if not: npm run proto:update', () => {
  expect(protoDescriptor).toEqual(generateDescriptor());
});

const bytes = Buffer.from([0, 255, 10]);
const address = { rank: 3, hostId: 'machine', grpc: null, unixSocket: '/tmp/socket', tcpSocket: '[::1]:4000' };

const clientMessages: readonly ClientMessage[] = [
  { handshake: bytes },
  { goodbye: {} },
  { request: { id: 1, timeoutMs: 1.5, get: { key: '' } } },
  { request: { id: 2 ** 32 - 1, timeoutMs: 1e12, set: { key: 'ключ', value: Buffer.alloc(0) } } },
  { request: { id: 1, timeoutMs: 1, add: { key: 'n', amount: -(2 ** 53 - 1) } } },
  { request: { id: 1, timeoutMs: 1, compareAndSet: { key: 'k', expected: Buffer.alloc(0), desired: bytes } } },
  { request: { id: 1, timeoutMs: 1, compareAndSet: { key: 'k', desired: bytes } } },
  { request: { id: 1, timeoutMs: 1, wait: { keys: [] } } },
  { request: { id: 1, timeoutMs: 1, delete: { key: 'k' } } },
  { request: { id: 1, timeoutMs: 1, numKeys: { prefix: '' } } },
  { request: { id: 1, timeoutMs: 1, start: {} } },
  { request: { id: 1, timeoutMs: 1, connected: { failure: { code: 'LOCKSTEP_TIMEOUT', message: 'no', ranks: [1] } } } },
];

test.each(clientMessages)('a client message comes back as it was sent: %j', (message) => {
  const { encodeClientMessage, decodeClientMessage } = storeCodec();
  expect(decodeClientMessage(encodeClientMessage(message))).toEqual(message);
});

const serverMessages: readonly ServerMessage[] = [
  { handshake: bytes },
  { goodbye: {} },
  { refusal: { code: 'LOCKSTEP_INVALID_ARGUMENT', message: 'no', ranks: [0, 7] } },
  { response: { id: 1, failure: { code: 'LOCKSTEP_TIMEOUT', message: '', ranks: [] } } },
  { response: { id: 1, number: 0 } },
  { response: { id: 1, number: 2 ** 53 - 1 } },
  { response: { id: 1, flag: false } },
  { response: { id: 1, value: { value: Buffer.alloc(0) } } },
  { response: { id: 1, compared: { isSet: false } } },
  { response: { id: 1, compared: { isSet: true, value: Buffer.alloc(0) } } },
  { response: { id: 1, done: {} } },
];

test.each(serverMessages)('a server message comes back as it was sent: %j', (message) => {
  const { encodeServerMessage, decodeServerMessage } = storeCodec();
  expect(decodeServerMessage(encodeServerMessage(message))).toEqual(message);
});

test('an address that is null in part comes back so', () => {
  const { encodeServerMessage, decodeServerMessage } = storeCodec();
  const message = decodeServerMessage(encodeServerMessage({ response: { id: 1, members: { addresses: [address] } } }));
  const addresses = 'response' in message && 'members' in message.response ? message.response.members.addresses : [];
  expect(addresses.map(addressFromWire)).toEqual([address]);
});

test('bytes that are no message throw', () => {
  expect(() => storeCodec().decodeClientMessage(Buffer.from([0x0a, 0xff]))).toThrow();
});
