/**
 * Rank 1 of a world of two in a process of its own; rank 0 is the test. Run as
 *
 *     link-process.ts PLANE HOW
 *
 * It echoes every frame. HOW: 'busy' (computes for 1.2 s without yielding after its first frame), 'exit' (ends without
 * a goodbye at its first frame), 'close' (closes its mesh after its first frame).
 */
import { openEndpoint } from '../../src/backend/grpc/data-plane';
import type { PeerAddress } from '../../src/backend/grpc/endpoint';
import { identityOf, RecordingLogger, type Plane } from './loopback-links';

async function main(plane: Plane, how: string): Promise<void> {
  const endpoint = await openEndpoint(identityOf(1, 2), { dataPlane: plane, logger: new RecordingLogger() });
  const other = await new Promise<PeerAddress>((resolve) => {
    process.once('message', (address: PeerAddress) => resolve(address));
    process.send?.(endpoint.address);
  });
  process.disconnect();
  const mesh = await endpoint.connect([other, endpoint.address], 10_000);
  let payload = new Uint8Array(0);
  mesh.listen({
    onHeader: (_from, header) => (payload = new Uint8Array(header.payloadBytes)),
    onPayload: (from, header) => {
      if (how === 'exit') process.exit(0);
      const echoed = mesh.link(from).send(header, payload);
      if (how === 'close') void echoed.then(() => mesh.close());
      if (how === 'busy' && header.message === 0) {
        const end = performance.now() + 1200;
        while (performance.now() < end);
      }
      echoed.catch(() => undefined); // rank 0 has left
    },
    onClosed: () => void mesh.close(),
  });
}

void main(process.argv[2] as Plane, process.argv[3] as string);
