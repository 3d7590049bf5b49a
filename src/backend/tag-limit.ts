/** The limit on tags where they travel in the header of a frame, which has 32 bits for them. */
import type { DataBuffer } from '../core/dtype';
import { UnsupportedError } from '../core/errors';
import type { CheckedPointToPoint } from './check-point-to-point';

export const MAX_TAG = 2 ** 32 - 1;

/** @throws UnsupportedError for a tag above MAX_TAG; a backend places it */
export function refuseLongTags({ parts }: CheckedPointToPoint<DataBuffer>): void {
  const tag = parts.find(({ call }) => call.tag > MAX_TAG)?.call.tag;
  if (tag !== undefined) throw new UnsupportedError(`tag: this backend takes tags up to ${MAX_TAG}, got ${tag}.`);
}
