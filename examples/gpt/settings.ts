/** The flags of the example. */
import { parseArgs } from 'node:util';
import type { ZeroOptions, ZeroPrecision } from 'lockstep';
import { DEFAULT_TEXT } from './text';

export interface Settings {
  /** Mock ranks in this process; undefined: the world that the environment describes. */
  readonly mockRanks: number | undefined;
  readonly text: string;
  readonly stage: Exclude<ZeroOptions['stage'], undefined>;
  readonly precision: ZeroPrecision;
  readonly activationCheckpoint: boolean;
  readonly layers: number;
  readonly heads: number;
  readonly width: number;
  readonly context: number;
  /** Windows of one backward on each rank. */
  readonly batch: number;
  /** Backwards of one step. */
  readonly accumulate: number;
  /** Optimizer steps in all, those before a resume included. */
  readonly steps: number;
  readonly learningRate: number;
  readonly seed: number;
  /** Folder of checkpoints; none are written without. */
  readonly checkpoint: string | undefined;
  readonly saveEvery: number;
  /** Go on from the newest checkpoint. */
  readonly resume: boolean;
  readonly reportEvery: number;
  /** Characters to write when training is over. */
  readonly sample: number;
  readonly prompt: string;
  readonly temperature: number;
}

export const HELP = `Train a character-level GPT with ZeRO.

    npx tsx examples/gpt/train.ts --mock 4                     4 ranks in this process
    npx lockstep run --nproc 4 examples/gpt/train.ts           4 processes

  --mock N                  ranks in this process; default: the world that the launcher made, or one rank
  --text FILE               UTF-8, also .gz; default: Newton's Opticks
  --stage 0|1|2|3           what is sharded: nothing, optimizer state, gradients too, parameters too (2)
  --precision NAME          float32, bfloat16 or float16 (float32)
  --activation-checkpoint   compute the blocks' activations twice instead of keeping them
  --layers, --heads, --width, --context
                            size of the model: 4, 4, 128, 64 make 0.8 M parameters
  --batch N                 windows of a backward on each rank (4)
  --accumulate N            backwards of a step (1)
  --steps N                 optimizer steps in all (200)
  --lr X                    learning rate (0.003)
  --seed N                  of the model, the order of the windows and the sample (1)
  --checkpoint DIR          save there, at the end and on Ctrl-C
  --save-every N            and every N steps
  --resume                  go on from the newest checkpoint in --checkpoint
  --report-every N          steps between two lines (10)
  --sample N                write N characters when done (0)
  --prompt TEXT             what the sample starts with
  --temperature X           of the sample: low is dull, high is wild (0.8)
`;

const flags = {
  help: { type: 'boolean', default: false },
  mock: { type: 'string' },
  text: { type: 'string', default: DEFAULT_TEXT },
  stage: { type: 'string', default: '2' },
  precision: { type: 'string', default: 'float32' },
  'activation-checkpoint': { type: 'boolean', default: false },
  layers: { type: 'string', default: '4' },
  heads: { type: 'string', default: '4' },
  width: { type: 'string', default: '128' },
  context: { type: 'string', default: '64' },
  batch: { type: 'string', default: '4' },
  accumulate: { type: 'string', default: '1' },
  steps: { type: 'string', default: '200' },
  lr: { type: 'string', default: '0.003' },
  seed: { type: 'string', default: '1' },
  checkpoint: { type: 'string' },
  'save-every': { type: 'string', default: '0' },
  resume: { type: 'boolean', default: false },
  'report-every': { type: 'string', default: '10' },
  sample: { type: 'string', default: '0' },
  prompt: { type: 'string', default: '\n' },
  temperature: { type: 'string', default: '0.8' },
} as const;

/** The settings of a command line; undefined if it asks for help. @throws Error naming the flag that is wrong */
export function readSettings(args?: readonly string[]): Settings | undefined {
  const { values } = parseArgs({ options: flags, ...(args === undefined ? {} : { args: [...args] }) });
  if (values.help) return undefined;
  if (values.resume && values.checkpoint === undefined)
    throw new Error('--resume: say from where with --checkpoint DIR.');
  return {
    mockRanks: values.mock === undefined ? undefined : whole('--mock', values.mock, 1),
    text: values.text,
    stage: oneOf('--stage', [0, 1, 2, 3] as const, Number(values.stage)),
    precision: oneOf('--precision', ['float32', 'bfloat16', 'float16'] as const, values.precision),
    activationCheckpoint: values['activation-checkpoint'],
    layers: whole('--layers', values.layers, 1),
    heads: whole('--heads', values.heads, 1),
    width: whole('--width', values.width, 1),
    context: whole('--context', values.context, 1),
    batch: whole('--batch', values.batch, 1),
    accumulate: whole('--accumulate', values.accumulate, 1),
    steps: whole('--steps', values.steps, 0),
    learningRate: above0('--lr', values.lr),
    seed: whole('--seed', values.seed, 0),
    checkpoint: values.checkpoint,
    saveEvery: whole('--save-every', values['save-every'], 0),
    resume: values.resume,
    reportEvery: whole('--report-every', values['report-every'], 1),
    sample: whole('--sample', values.sample, 0),
    prompt: values.prompt === '' ? '\n' : values.prompt,
    temperature: above0('--temperature', values.temperature),
  };
}

function whole(flag: string, text: string, least: number): number {
  const value = Number(text);
  if (text !== '' && Number.isSafeInteger(value) && value >= least) return value;
  throw new Error(`${flag}: expected a whole number of ${least} or more, got '${text}'.`);
}

function above0(flag: string, text: string): number {
  const value = Number(text);
  if (value > 0 && Number.isFinite(value)) return value;
  throw new Error(`${flag}: expected a number above 0, got '${text}'.`);
}

function oneOf<const T extends number | string>(flag: string, allowed: readonly T[], value: number | string): T {
  const found = allowed.find((each) => each === value);
  if (found !== undefined) return found;
  throw new Error(`${flag}: expected one of ${allowed.join(', ')}, got '${value}'.`);
}
