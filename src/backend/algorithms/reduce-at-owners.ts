/**
 * The reduction that all reducing collectives share: each slice of the buffer has an owner, who receives that slice of
 * every other rank chunk by chunk, reduces in rank order 0, 1, 2, ... and answers.
 *
 * Rank order gives the same bits as reducing whole buffers one after the other, which a ring or a tree does not; and a
 * contribution is sent once, to its owner, so no more bytes move than in a ring.
 */
import { chunksOf, type Part } from './partition';
import { NOTHING, peersOf, ScheduleBuilder, type Place, type Region, type Schedule } from './schedule';

export interface OwnedSlices {
  /** The slice of the input that each rank owns; undefined: that rank owns none and gets no message. */
  readonly slices: readonly (Part | undefined)[];
  /** Where the owner's result begins in its output. */
  readonly outputStart: number;
  readonly chunkLength: number;
  /**
   * What an owner answers. 'result': each chunk's result, to all ranks, at the slice's place in the output.
   * 'done': an empty message for each chunk, so that a rank is done only when the owner is.
   * 'room': an empty message only where the sender waits for it, see [Note: windows].
   */
  readonly answer: 'result' | 'done' | 'room';
}

/** Chunks of one slice on their way, at most. Fewer for many ranks, whose chunks all need scratch. */
const MAX_WINDOW = 8;
/** Elements of scratch that a window may fill, in chunks: 128 chunks of 256 KiB are 32 MiB. */
const MAX_SCRATCH_CHUNKS = 128;

export function windowOf(size: number): number {
  return Math.max(2, Math.min(MAX_WINDOW, Math.floor(MAX_SCRATCH_CHUNKS / Math.max(1, size - 1))));
}

export function reduceAtOwners(place: Place, { slices, outputStart, chunkLength, answer }: OwnedSlices): Schedule {
  const { rank, size } = place;
  const window = windowOf(size);
  // Answers begin when half the window is under way, so that both directions of a link are always busy.
  const lag = Math.floor(window / 2);
  const peers = peersOf(place);
  const chunks = slices.map((slice) => (slice === undefined ? [] : chunksOf(slice, chunkLength)));
  const own = chunks[rank] as readonly Part[];
  const ownStart = slices[rank]?.start ?? 0;
  const slotLength = own[0]?.length ?? 0;
  const numSlots = Math.min(window, own.length);
  const builder = new ScheduleBuilder(numSlots * (size - 1) * slotLength);

  const slot = (chunk: number, peer: number, length: number): Region => {
    const order = peer < rank ? peer : peer - 1;
    return { space: 'scratch', start: ((chunk % numSlots) * (size - 1) + order) * slotLength, length };
  };
  const numAnswers = (owner: number): number => {
    const numChunks = chunks[owner]?.length ?? 0;
    return answer === 'room' ? Math.max(0, numChunks - window) : numChunks;
  };
  const reduced: number[] = [];
  const answered = chunks.map((): number[] => []);

  const contribute = (index: number): void => {
    for (const peer of peers) {
      const chunk = chunks[peer]?.[index];
      if (chunk === undefined) continue;
      builder.send(
        peer,
        { space: 'input', ...chunk },
        index < window ? [] : [answered[peer]?.[index - window] as number],
      );
    }
    const chunk = own[index];
    if (chunk === undefined) return;
    const receives = peers.map((peer) =>
      builder.receive(peer, slot(index, peer, chunk.length), index < window ? [] : [reduced[index - window] as number]),
    );
    const inputs = Array.from({ length: size }, (_unused, peer): Region =>
      peer === rank ? { space: 'input', ...chunk } : slot(index, peer, chunk.length),
    );
    reduced[index] = builder.reduce(inputs, resultRegion(chunk), receives);
  };
  const resultRegion = (chunk: Part): Region => ({
    space: 'output',
    start: outputStart + chunk.start - ownStart,
    length: chunk.length,
  });
  const answerChunk = (index: number): void => {
    const chunk = own[index];
    if (chunk !== undefined && index < numAnswers(rank)) {
      const region = answer === 'result' ? resultRegion(chunk) : NOTHING;
      for (const peer of peers) builder.send(peer, region, [reduced[index] as number]);
    }
    for (const peer of peers) {
      if (index >= numAnswers(peer)) continue;
      const theirs = chunks[peer]?.[index] as Part;
      (answered[peer] as number[])[index] = builder.receive(
        peer,
        answer === 'result' ? { space: 'output', ...theirs } : NOTHING,
      );
    }
  };

  const numRounds = Math.max(...chunks.map((list) => list.length)) + lag;
  for (let round = 0; round < numRounds; round++) {
    contribute(round);
    if (round >= lag) answerChunk(round - lag);
  }
  return builder.build();
}
