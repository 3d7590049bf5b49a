/**
 * GPUs and NCCL of several ranks in this process, behind the addon's interface: enough to test what is above the addon where
 * there is no compiler. One stream a rank, first in first out; operations run when all ranks that they need have come to them,
 * and ranks that come to different ones wait for ever, as on NCCL.
 */
import { setImmediate } from 'node:timers';
import type { Communicator, NcclOperation } from '../../src/backend/nccl/addon';
import { FakeRank, newCommunicator, type FakeCommunicator, type Launch, type SplitCall } from './fake-gpu';
import { place, runCollective } from './fake-nccl-operations';

/** What the ranks have in common. */
export class FakeNccl {
  readonly ranks: readonly FakeRank[];
  /** Uses that NCCL forbids. */
  readonly misuses: string[] = [];
  /** Operations are not begun for now. */
  isStuck = false;
  readonly #communicators = new Map<string, FakeCommunicator[]>();
  readonly #waiting = new Map<string, (() => void)[]>();
  readonly #splits = new Map<string, SplitCall[]>();
  #numIds = 0;
  #numSplits = 0;
  #isScheduled = false;

  constructor(size: number) {
    this.ranks = Array.from({ length: size }, (_unused, rank) => new FakeRank(this, rank));
  }

  rank(rank: number): FakeRank {
    return this.ranks[rank] as FakeRank;
  }

  newId(): Uint8Array {
    return new Uint8Array(128).fill(++this.#numIds);
  }

  /** Settles once all ranks of `id` have joined. */
  join(communicator: FakeCommunicator): Promise<void> {
    const joined = this.#communicators.get(communicator.id) ?? [];
    this.#communicators.set(communicator.id, joined);
    joined[communicator.rank] = communicator;
    const waiting = this.#waiting.get(communicator.id) ?? [];
    this.#waiting.set(communicator.id, waiting);
    return new Promise((resolve) => {
      waiting.push(resolve);
      if (waiting.length === communicator.size) for (const each of waiting) each();
    });
  }

  split(call: SplitCall): void {
    const { communicator } = call;
    const calls = this.#splits.get(communicator.id) ?? [];
    this.#splits.set(communicator.id, calls);
    calls.push(call);
    if (calls.length < communicator.size) return;
    this.#splits.delete(communicator.id);
    const number = this.#numSplits++;
    for (const color of new Set(calls.map((each) => each.color))) {
      const members = calls.filter((each) => each.color === color).sort((a, b) => a.key - b.key);
      members.forEach(({ communicator: parent, name, resolve }, rank) => {
        if (color < 0) return resolve(undefined);
        const child = newCommunicator(parent.owner, `${parent.id}/${number}.${color}`, name, rank, members.length);
        void this.join(child);
        resolve(child as unknown as Communicator);
      });
    }
  }

  /** It stays among the calls, so that the others' never end by themselves. */
  breakOffSplit(communicator: FakeCommunicator, error: Error): void {
    const call = this.#splits.get(communicator.id)?.find((each) => each.communicator === communicator);
    call?.reject(error);
  }

  /** Let operations run that all their ranks have come to. */
  wake(): void {
    if (this.#isScheduled) return;
    this.#isScheduled = true;
    setImmediate(() => {
      this.#isScheduled = false;
      if (!this.isStuck) while (this.ranks.some((rank) => this.#advance(rank)));
    });
  }

  #advance(rank: FakeRank): boolean {
    const [head] = rank.stream;
    if (head === undefined) return false;
    const isMessages = head.operations.every(({ kind }) => kind === 'send' || kind === 'recv');
    return isMessages ? this.#exchange(head) : this.#collective(head);
  }

  #headOf(id: string, rank: number): Launch | undefined {
    const head = this.#communicators.get(id)?.[rank]?.owner.stream[0];
    return head?.communicator.id === id ? head : undefined;
  }

  #exchange(head: Launch): boolean {
    const { id, rank, owner } = head.communicator;
    let hasMoved = false;
    for (const send of head.operations) {
      if (send.kind !== 'send' || head.done.has(send)) continue;
      const other = this.#headOf(id, send.peer);
      const recv = other?.operations.find(
        (each) => each.kind === 'recv' && each.peer === rank && !other.done.has(each),
      );
      if (other === undefined || recv?.kind !== 'recv' || recv.count !== send.count || recv.dtype !== send.dtype)
        continue;
      place(recv.recv, recv).set(place(send.send, send));
      head.done.add(send);
      other.done.add(recv);
      hasMoved = true;
      other.communicator.owner.finishIfDone(other);
    }
    owner.finishIfDone(head);
    return hasMoved;
  }

  #collective(head: Launch): boolean {
    const { id, size } = head.communicator;
    const heads = Array.from({ length: size }, (_unused, rank) => this.#headOf(id, rank));
    const launches = heads.filter((each) => each !== undefined);
    const [first] = launches;
    if (launches.length < size || first === undefined) return false;
    const isSame = launches.every(({ operations }) =>
      operations.every(({ kind, count, dtype }, i) => {
        const other = first.operations[i];
        return (
          operations.length === first.operations.length &&
          other?.kind === kind &&
          other.count === count &&
          other.dtype === dtype
        );
      }),
    );
    if (!isSame) return false; // NCCL hangs, or worse
    first.operations.forEach((_unused, i) =>
      runCollective(launches.map(({ operations }) => operations[i] as NcclOperation)),
    );
    for (const launch of launches) {
      for (const operation of launch.operations) launch.done.add(operation);
      launch.communicator.owner.finishIfDone(launch);
    }
    return true;
  }
}
