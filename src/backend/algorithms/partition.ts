/** Contiguous parts of a buffer. */

export interface Part {
  readonly start: number;
  readonly length: number;
}

/** `length` elements in `numParts` parts that differ by at most one element, the longer ones first. */
export function evenParts(length: number, numParts: number): Part[] {
  const base = Math.floor(length / numParts);
  const numLonger = length % numParts;
  return Array.from({ length: numParts }, (_unused, index) => ({
    start: index * base + Math.min(index, numLonger),
    length: index < numLonger ? base + 1 : base,
  }));
}

/** Parts of these lengths, one behind the other. */
export function partsOf(lengths: readonly number[]): Part[] {
  let start = 0;
  return lengths.map((length) => {
    const part = { start, length };
    start += length;
    return part;
  });
}

/** A part in pieces of `chunkLength` elements, the last one shorter; one empty piece if the part is empty. */
export function chunksOf({ start, length }: Part, chunkLength: number): Part[] {
  const numChunks = Math.max(1, Math.ceil(length / chunkLength));
  return Array.from({ length: numChunks }, (_unused, index) => ({
    start: start + index * chunkLength,
    length: Math.min(chunkLength, length - index * chunkLength),
  }));
}
