/** As 'rank 3', or 'ranks 1, 2 and 5'; longer lists are cut. */
export function rankList(ranks: readonly number[]): string {
  const MOST = 16;
  if (ranks.length === 1) return `rank ${ranks[0]}`;
  if (ranks.length > MOST) return `ranks ${ranks.slice(0, MOST).join(', ')} and ${ranks.length - MOST} more`;
  return `ranks ${ranks.slice(0, -1).join(', ')} and ${ranks.at(-1)}`;
}
