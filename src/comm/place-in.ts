import { GroupRanks } from '../core/group-ranks';
import { notInGroup, type CallPlace } from '../process-group/call-place';
import type { ProcessGroup } from '../process-group/process-group';

/** The place of a call on `group`, for messages. @throws NotInGroupError if this rank is not a member */
export function placeIn(group: ProcessGroup, op: string): CallPlace {
  if (!group.isMember) throw notInGroup(op, group.name, group.ranks);
  return { op, group: group.name, members: new GroupRanks(group.ranks), rank: group.rank, size: group.size };
}
