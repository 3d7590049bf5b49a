import { HEADER_BYTES, FrameKind, encodeHeader } from '../../../src/backend/grpc/frame';
import type { ReceivingHalf, SendingHalf } from '../../../src/backend/grpc/half-link';
import { PeerLink } from '../../../src/backend/grpc/peer-link';
import { RecordingListener, dataHeader } from '../../helpers/loopback-links';

/** A connection that does what the test says. */
class FakeHalves implements SendingHalf, ReceivingHalf {
  breakSending: (why: string) => void = () => undefined;
  arrive: (bytes: Uint8Array) => void = () => undefined;
  endReceiving: (why: string) => void = () => undefined;
  isSendingBroken = false;
  isDestroyed = false;

  send(): Promise<void> {
    return this.isSendingBroken ? Promise.reject(new Error('EPIPE')) : Promise.resolve();
  }
  end(): Promise<void> {
    return Promise.resolve();
  }
  onClosed(callback: (why: string) => void): void {
    this.breakSending = (why) => {
      this.isSendingBroken = true;
      callback(why);
    };
  }
  start(onBytes: (bytes: Uint8Array) => void, onClosed: (why: string) => void): void {
    this.arrive = onBytes;
    this.endReceiving = onClosed;
  }
  destroy(): void {
    this.isDestroyed = true;
  }
}

function linked(): { halves: FakeHalves; link: PeerLink; listener: RecordingListener } {
  const halves = new FakeHalves();
  const link = new PeerLink(3, halves, halves);
  const listener = new RecordingListener();
  link.listen(listener);
  return { halves, link, listener };
}

function goodbye(): Uint8Array {
  const bytes = new Uint8Array(HEADER_BYTES);
  encodeHeader({ ...dataHeader(0, 0), kind: FrameKind.Goodbye }, bytes);
  return bytes;
}

describe('a link whose sending half breaks', () => {
  test('waits for the receiving half to say that it was a goodbye', async () => {
    const { halves, link, listener } = linked();
    halves.breakSending('closed');
    const failed = link.send(dataHeader(0, 0), undefined);
    const outcome = expect(failed).rejects.toThrow('rank 3 has left: it closed its world');
    halves.arrive(goodbye());
    halves.endReceiving('closed');
    await outcome;
    await listener.untilClosed();
    expect(listener.closed).toEqual([{ from: 3, reason: undefined }]);
    expect(halves.isDestroyed).toBe(true);
  });

  test('takes the reason of the receiving half when that breaks too', async () => {
    const { halves, link, listener } = linked();
    halves.breakSending('closed');
    const failed = expect(link.send(dataHeader(0, 0), undefined)).rejects.toThrow('rank 3 is lost: ECONNRESET.');
    halves.endReceiving('ECONNRESET');
    await failed;
    expect(listener.closed).toEqual([{ from: 3, reason: expect.objectContaining({ code: 'LOCKSTEP_PEER_LOST' }) }]);
  });

  test('is lost if nothing explains it for a second', async () => {
    const { halves, link, listener } = linked();
    halves.breakSending('its stream was cancelled');
    await expect(link.send(dataHeader(0, 0), undefined)).rejects.toThrow('rank 3 is lost: its stream was cancelled.');
    expect(listener.closed).toHaveLength(1);
  });
});

test('a connection that ends within a frame says so', async () => {
  const { halves, listener } = linked();
  halves.arrive(goodbye().subarray(0, 20));
  halves.endReceiving('its connection closed');
  await listener.untilClosed();
  expect(listener.closed[0]?.reason?.message).toBe('rank 3 is lost: its connection closed in the middle of a frame.');
});

test('what comes after the end is ignored, and the end is told once', async () => {
  const { halves, link, listener } = linked();
  halves.arrive(goodbye());
  halves.arrive(goodbye());
  halves.endReceiving('late');
  link.destroy(new Error('later'));
  await link.close();
  expect(listener.closed).toEqual([{ from: 3, reason: undefined }]);
});

test('a link that ended before anybody listened tells who listens then', async () => {
  const halves = new FakeHalves();
  const link = new PeerLink(3, halves, halves);
  const reason = new Error('gone');
  link.destroy(reason);
  const listener = new RecordingListener();
  link.listen(listener);
  await listener.untilClosed();
  expect(listener.closed).toEqual([{ from: 3, reason }]);
});
