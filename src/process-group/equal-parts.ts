import { formatShape, type Shape } from '../tensor/shape';
import { invalidArgument, type CallPlace } from './call-place';

/**
 * How much of dimension `dim` each rank of the group gets.
 * @throws InvalidArgumentError with the sizes, if there is no such dimension or it does not divide
 */
export function equalPart(shape: Shape, dim: number, place: CallPlace): number {
  const extent = shape[dim];
  if (extent === undefined) {
    throw invalidArgument(place, `shape ${formatShape(shape)} has no dimension ${dim} to divide among the ranks`);
  }
  if (extent % place.size === 0) return extent / place.size;
  const padded = Math.ceil(extent / place.size) * place.size;
  throw invalidArgument(
    place,
    `dimension ${dim} of shape ${formatShape(shape)} has size ${extent}, which does not divide into ${place.size} equal parts, one per rank. Pad it to ${padded}`,
  );
}
