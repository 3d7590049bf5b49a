/** Executes all ranks' schedules without a network, in a random order of steps and deliveries. */
import type { Place, Region, Schedule, Step } from '../../../src/backend/algorithms/schedule';
import { Generator } from '../../../src/core/generator';

/** The memory of one rank. Values are lists of contributions, so that a reduction shows its order: '0+1+2'. */
export interface RankMemory {
  readonly input: string[];
  /** The same array as `input` for calls in place. */
  readonly output: string[];
}

export interface SimulatedWorld {
  readonly memories: readonly RankMemory[];
  /** Elements that each rank sent. */
  readonly sent: readonly number[];
  readonly numMessages: number;
}

interface Message {
  /** Read only when it is delivered: the last moment at which a real link may still read the sender's memory. */
  readonly read: () => string[];
  readonly delivered: () => void;
}

interface SimulatedRank {
  readonly schedule: Schedule;
  readonly memory: Record<'input' | 'output' | 'scratch', string[]>;
  readonly waitingFor: Set<number>[];
  readonly started: boolean[];
  readonly done: boolean[];
}

/** @throws if ranks block for ever, lengths disagree, or a message arrives that has no place yet */
export function simulate(
  size: number,
  seed: number,
  scheduleOf: (place: Place) => Schedule,
  memoryOf: (rank: number) => RankMemory,
): SimulatedWorld {
  const random = new Generator(seed);
  const memories = Array.from({ length: size }, (_unused, rank) => memoryOf(rank));
  const ranks = memories.map((memory, rank): SimulatedRank => {
    const schedule = scheduleOf({ rank, size });
    const scratch = new Array<string>(schedule.scratchLength).fill('scratch');
    return {
      schedule,
      memory: { ...memory, scratch },
      waitingFor: schedule.steps.map((step) => new Set(step.after)),
      started: schedule.steps.map(() => false),
      done: schedule.steps.map(() => false),
    };
  });
  const links = new Map<string, Message[]>();
  const sent = new Array<number>(size).fill(0);
  let numMessages = 0;

  const regionOf = (rank: number, { space, start, length }: Region): string[] => {
    const memory = ranks[rank]?.memory[space] as string[];
    if (start < 0 || length < 0 || start + length > memory.length)
      throw new Error(`rank ${rank}: ${space} is too short`);
    return memory.slice(start, start + length);
  };
  const write = (rank: number, { space, start }: Region, values: readonly string[]): void => {
    const memory = ranks[rank]?.memory[space] as string[];
    values.forEach((value, i) => (memory[start + i] = value));
  };
  const finish = (rank: number, index: number): void => {
    const self = ranks[rank] as SimulatedRank;
    self.done[index] = true;
    for (const waiting of self.waitingFor) waiting.delete(index);
  };
  const isInTurn = (rank: number, index: number, step: Step): boolean => {
    if (step.kind !== 'send') return true;
    const { schedule, started } = ranks[rank] as SimulatedRank;
    return schedule.steps.every(
      (other, at) => at >= index || other.kind !== 'send' || other.peer !== step.peer || started[at] === true,
    );
  };
  const isReady = (rank: number, index: number): boolean => {
    const { waitingFor, started, schedule } = ranks[rank] as SimulatedRank;
    const step = schedule.steps[index] as Step;
    if (started[index] === true || waitingFor[index]?.size !== 0 || step.kind === 'receive') return false;
    return isInTurn(rank, index, step);
  };
  const run = (rank: number, index: number): void => {
    const { schedule, started } = ranks[rank] as SimulatedRank;
    const step = schedule.steps[index] as Step;
    started[index] = true;
    switch (step.kind) {
      case 'send': {
        const key = `${rank}>${step.peer}`;
        const queue = links.get(key) ?? [];
        links.set(key, queue);
        queue.push({ read: () => regionOf(rank, step.region), delivered: () => finish(rank, index) });
        sent[rank] = (sent[rank] as number) + step.region.length;
        numMessages += 1;
        return;
      }
      case 'reduce': {
        const inputs = step.inputs.map((region) => regionOf(rank, region));
        const result = (inputs[0] as string[]).map((_unused, i) => inputs.map((input) => input[i]).join('+'));
        write(rank, step.region, result);
        return finish(rank, index);
      }
      case 'finish':
        write(
          rank,
          step.region,
          regionOf(rank, step.region).map((value) => `=${value}`),
        );
        return finish(rank, index);
      case 'copy':
        write(rank, step.region, regionOf(rank, step.from));
        return finish(rank, index);
      case 'receive':
        throw new Error('receives are done by deliveries');
    }
  };
  const deliver = (key: string): void => {
    const [from, to] = key.split('>').map(Number) as [number, number];
    const message = links.get(key)?.shift() as Message;
    const { schedule, waitingFor, done } = ranks[to] as SimulatedRank;
    const index = schedule.steps.findIndex((step, at) => step.kind === 'receive' && step.peer === from && !done[at]);
    const step = schedule.steps[index];
    if (step === undefined) throw new Error(`rank ${to} does not expect a message of rank ${from}`);
    const values = message.read();
    if (values.length !== step.region.length)
      throw new Error(`rank ${to} expects ${step.region.length} of ${values.length}`);
    if (waitingFor[index]?.size !== 0) throw new Error(`rank ${to} has no place yet for a message of rank ${from}`);
    write(to, step.region, values);
    message.delivered();
    finish(to, index);
  };

  for (;;) {
    const actions: (() => void)[] = [];
    ranks.forEach(({ schedule }, rank) => {
      schedule.steps.forEach((_step, index) => {
        if (isReady(rank, index)) actions.push(() => run(rank, index));
      });
    });
    for (const [key, queue] of links) if (queue.length > 0) actions.push(() => deliver(key));
    if (actions.length === 0) break;
    actions[random.nextBelow(actions.length)]?.();
  }
  ranks.forEach(({ done, schedule }, rank) => {
    const stuck = schedule.steps.filter((_step, index) => !done[index]);
    if (stuck.length > 0) throw new Error(`rank ${rank} is stuck before ${JSON.stringify(stuck[0])}`);
  });
  return { memories, sent, numMessages };
}
