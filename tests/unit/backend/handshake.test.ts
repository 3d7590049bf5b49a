import fc from 'fast-check';
import { PROTOCOL_VERSION } from '../../../src/backend/grpc/frame';
import {
  HandshakeError,
  MAX_HANDSHAKE_BYTES,
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
  type Hello,
} from '../../../src/backend/grpc/handshake';
import { acceptHandshake, connectHandshake, type HandshakeChannel } from '../../../src/backend/grpc/handshake-exchange';
import { HandshakeInbox, frameHandshake } from '../../../src/backend/grpc/handshake-inbox';
import { MessageQueue } from '../../../src/backend/grpc/message-queue';
import { count } from '../../helpers/counts';

const runs = (name: string): { numRuns: number; seed: number } => ({ numRuns: count(name, 500, 10_000), seed: 5 });

const claims = { purpose: 'link', generation: 7, rank: 1, worldSize: 4, peerRank: 0 } as const;
const expected = { purpose: 'link', generation: 7, worldSize: 4, ownRank: 0 } as const;

/** Two ends of a connection that carries messages, and all that was said on it. */
function channelPair(): { client: HandshakeChannel; server: HandshakeChannel; said: Uint8Array[] } {
  const toServer = new MessageQueue();
  const toClient = new MessageQueue();
  const said: Uint8Array[] = [];
  const end = (out: MessageQueue, inward: MessageQueue): HandshakeChannel => ({
    send: (message) => {
      said.push(message);
      out.push(message);
    },
    receive: () => inward.receive(),
  });
  return { client: end(toServer, toClient), server: end(toClient, toServer), said };
}

async function meet(options: {
  readonly clientToken?: string | undefined;
  readonly serverToken?: string | undefined;
  readonly claimed?: Partial<Hello>;
  readonly admit?: (hello: Hello) => void;
}): Promise<{ client: PromiseSettledResult<void>; server: PromiseSettledResult<Hello>; said: Uint8Array[] }> {
  const { client, server, said } = channelPair();
  const [clientEnd, serverEnd] = await Promise.allSettled([
    connectHandshake(client, { ...claims, ...options.claimed }, options.clientToken),
    acceptHandshake(server, {
      token: options.serverToken,
      expected,
      provenNonces: new Set(),
      admit: options.admit,
    }),
  ]);
  return { client: clientEnd, server: serverEnd, said };
}

function reasonOf(result: PromiseSettledResult<unknown>): HandshakeError {
  expect(result.status).toBe('rejected');
  const reason = (result as PromiseRejectedResult).reason as unknown;
  expect(reason).toBeInstanceOf(HandshakeError);
  return reason as HandshakeError;
}

describe('the handshake', () => {
  test.each([['secret'], [undefined]])('joins two processes that hold the same token (%s)', async (token) => {
    const { client, server } = await meet({ clientToken: token, serverToken: token });
    expect(client.status).toBe('fulfilled');
    expect(server).toMatchObject({ status: 'fulfilled', value: { rank: 1, worldSize: 4, generation: 7 } });
  });

  test.each([
    ['mine', 'yours'],
    [undefined, 'yours'],
    ['mine', undefined],
  ])('refuses different tokens (%s, %s) on both sides, and no message shows one', async (clientToken, serverToken) => {
    const { client, server, said } = await meet({ clientToken, serverToken });
    for (const reason of [reasonOf(client), reasonOf(server)]) {
      expect(reason.refusal).toBe('token');
      expect(reason.message).toContain('do not hold the same job token');
      expect(reason.message).toContain('Set the same LOCKSTEP_JOB_TOKEN');
      expect(reason.message).not.toMatch(/mine|yours/);
    }
    expect(Buffer.concat(said).toString()).not.toMatch(/mine|yours/);
  });

  test.each<[Partial<Hello>, string, string]>([
    [
      { generation: 6 },
      'generation',
      'rank 1 belongs to an earlier start of the job (generation 6, this is generation 7)',
    ],
    [{ generation: 8 }, 'generation', 'rank 1 belongs to a later start of the job'],
    [{ worldSize: 5 }, 'world-size', 'rank 1 was started for a world of 5 ranks, this job has 4'],
    [{ rank: 4 }, 'rank', 'rank 4 is outside a world of 4 ranks'],
    [{ rank: 0 }, 'rank', 'two processes have rank 0'],
    [{ peerRank: 2 }, 'purpose', 'rank 1 wanted to reach rank 2 and came to rank 0'],
    [{ purpose: 'store', peerRank: null }, 'purpose', 'rank 1 wanted to reach the store and came to rank 0'],
  ])('refuses %j and tells both sides why', async (claimed, refusal, message) => {
    const { client, server } = await meet({ clientToken: 's', serverToken: 's', claimed });
    for (const reason of [reasonOf(client), reasonOf(server)]) {
      expect(reason.refusal).toBe(refusal);
      expect(reason.message).toContain(message);
      expect(reason.code).toBe('LOCKSTEP_INVALID_ARGUMENT');
    }
  });

  test('tells nothing about the job to a client without the token, whatever it claims', async () => {
    const { server, said } = await meet({
      clientToken: 'wrong',
      serverToken: 's',
      claimed: { worldSize: 99, generation: 1 },
    });
    expect(reasonOf(server).refusal).toBe('token');
    expect(Buffer.concat(said).toString()).not.toContain('this job has');
  });

  test('passes on the last word of the server', async () => {
    const admit = (): void => {
      throw new HandshakeError('duplicate', 'rank 1 is connected already.');
    };
    const { client } = await meet({ clientToken: 's', serverToken: 's', admit });
    expect(reasonOf(client).message).toBe('rank 1 is connected already.');
  });

  test('names both versions of the protocol where they differ', () => {
    const hello = { ...createHello(claims), version: 99, added: 'since' };
    const decode = (): Hello => decodeHello(Buffer.from(JSON.stringify(hello)));
    expect(decode).toThrow(`version 99 of Lockstep's protocol, this process speaks version ${PROTOCOL_VERSION}`);
    expect(decode).toThrow(expect.objectContaining({ refusal: 'version' }));
  });

  test('a recorded conversation, said again to the same server, is refused', async () => {
    const provenNonces = new Set<string>();
    const { client, server, said } = channelPair();
    const options = { token: 's', expected, provenNonces };
    await Promise.all([connectHandshake(client, claims, 's'), acceptHandshake(server, options)]);
    const replayed = channelPair();
    for (const index of [0, 2]) replayed.client.send(said[index] as Uint8Array);
    const refused = acceptHandshake(replayed.server, options);
    await expect(refused).rejects.toMatchObject({ refusal: 'replay' });
    await expect(refused).rejects.toThrow('it repeats the hello of a connection that was accepted before');
  });

  test('a recorded conversation is of no use against a server that has never heard it', async () => {
    const { said } = await meet({ clientToken: 's', serverToken: 's' });
    const replayed = channelPair();
    for (const index of [0, 2]) replayed.client.send(said[index] as Uint8Array);
    const refused = acceptHandshake(replayed.server, { token: 's', expected, provenNonces: new Set() });
    await expect(refused).rejects.toMatchObject({ refusal: 'token' });
  });

  test("the server's proof does not serve as the client's", () => {
    const hello = createHello(claims);
    const challenge = createChallenge(hello, 's');
    const mirrored = { type: 'proof', proof: challenge.proof } as const;
    expect(() => checkProof(hello, challenge, mirrored, 's')).toThrow('do not hold the same job token');
  });

  test.each(['purpose', 'generation', 'rank', 'worldSize', 'peerRank', 'nonce'] as const)(
    'a proof holds only for the %s that was claimed',
    (field) => {
      const hello = createHello(claims);
      const other = createHello({ purpose: 'store', generation: 8, rank: 2, worldSize: 5, peerRank: 3 });
      const challenge = createChallenge(hello, 's');
      const proof = answerChallenge(hello, challenge, 's');
      checkProof(hello, challenge, proof, 's');
      expect(() => checkProof({ ...hello, [field]: other[field] }, challenge, proof, 's')).toThrow(HandshakeError);
    },
  );

  test('a store that does not know the world size takes any', () => {
    const store = { purpose: 'store', generation: 7, worldSize: undefined, ownRank: null } as const;
    checkClaims({ ...claims, purpose: 'store', peerRank: null, worldSize: 3 }, store);
  });

  test('a refusal cannot write control characters into our log', () => {
    const refusal = { type: 'refusal', refusal: 'token', message: 'a\u001b[2Jb\nc' };
    const decode = (): unknown => decodeChallenge(Buffer.from(JSON.stringify(refusal)));
    expect(decode).toThrow('a?[2Jb?c');
  });
});

describe('strangers', () => {
  const decoders = [decodeHello, decodeChallenge, decodeProof, decodeAccepted];
  const expectRefused = (bytes: Uint8Array): void => {
    for (const decode of decoders) {
      try {
        decode(bytes);
      } catch (error) {
        expect(error).toBeInstanceOf(HandshakeError);
        expect((error as Error).message.length).toBeLessThan(1200);
      }
    }
  };

  test('garbage is refused with a typed error', () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 600 }), (bytes) => {
        expectRefused(bytes);
        expect(() => decodeHello(bytes)).toThrow(HandshakeError);
      }),
      runs('hello, garbage'),
    );
  });

  test('any JSON is refused with a typed error', () => {
    fc.assert(
      fc.property(fc.json(), (text) => expectRefused(Buffer.from(text))),
      runs('hello, any JSON'),
    );
  });

  test('a hello with any field changed is decoded or refused with a typed error', () => {
    const hello = createHello(claims);
    const field = fc.constantFrom(...Object.keys(hello), '__proto__', 'other');
    fc.assert(
      fc.property(field, fc.jsonValue(), (name, value) => {
        expectRefused(Buffer.from(JSON.stringify({ ...hello, [name]: value })));
      }),
      runs('hello, one field changed'),
    );
  });

  test('a hello with any byte changed is decoded or refused with a typed error', () => {
    const good = Buffer.from(encodeHandshake(createHello(claims)));
    fc.assert(
      fc.property(fc.nat(good.length - 1), fc.nat(255), (place, value) => {
        const bytes = Buffer.from(good);
        bytes[place] = value;
        expectRefused(bytes);
      }),
      runs('hello, one byte changed'),
    );
  });

  test('a message beyond the limit is refused unparsed', () => {
    expect(() => decodeHello(new Uint8Array(MAX_HANDSHAKE_BYTES + 1))).toThrow(
      expect.objectContaining({ refusal: 'oversized' }),
    );
  });
});

describe('handshake messages on a stream of bytes', () => {
  test('come out as they went in however the bytes are cut', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.array(fc.uint8Array({ maxLength: 60 }), { minLength: 1, maxLength: 5 }),
        fc.integer({ min: 1, max: 30 }),
        fc.uint8Array({ maxLength: 40 }),
        async (messages, step, rest) => {
          const inbox = new HandshakeInbox();
          const bytes = Buffer.concat([...messages.map(frameHandshake), rest]);
          for (let at = 0; at < bytes.length; at += step) inbox.push(bytes.subarray(at, at + step));
          for (const message of messages) expect(Buffer.from(await inbox.receive())).toEqual(Buffer.from(message));
          expect(Buffer.from(inbox.takeUnread())).toEqual(Buffer.from(rest));
        },
      ),
      runs('handshake inbox, any cut'),
    );
  });

  test('a length beyond the limit is refused before anything is kept for it', async () => {
    const inbox = new HandshakeInbox();
    inbox.push(Buffer.from([0xff, 0xff, 0xff, 0xff]));
    await expect(inbox.receive()).rejects.toThrow('announced a handshake message of 4294967295 bytes, at most 4096');
  });

  test('the end of the connection is told after what came before it', async () => {
    const inbox = new HandshakeInbox();
    inbox.push(frameHandshake(new Uint8Array([1])));
    inbox.fail(new Error('gone'));
    expect([...(await inbox.receive())]).toEqual([1]);
    await expect(inbox.receive()).rejects.toThrow('gone');
  });
});
