import { createSocket } from 'node:dgram';
import { isIP } from 'node:net';
import { isLoopback } from './host-address';

/**
 * This machine's address on the way to `address`, the store's, where the other ranks can reach this one too: on one
 * machine loopback, in a cluster that of the network that the ranks share.
 *
 * A datagram socket that is connected has chosen its route, and thereby its address, without sending anything.
 */
export async function localAddressTowards(address: string, port: number): Promise<string> {
  if (isLoopback(address)) return address;
  const socket = createSocket(isIP(address) === 6 ? 'udp6' : 'udp4');
  try {
    return await new Promise<string>((resolve, reject) => {
      socket.once('error', reject);
      socket.connect(port, address, () => resolve(socket.address().address));
    });
  } finally {
    socket.close();
  }
}
