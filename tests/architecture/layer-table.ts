/**
 * Who may import whom. A layer is a folder of src/ or a single file; the longest matching name wins.
 * A layer may always import itself; whatever is not listed here is forbidden.
 */
export interface Layer {
  readonly name: string;
  /** Layers that may be imported in any way. */
  readonly imports: readonly string[];
  /** Layers of which only types may be imported. */
  readonly types?: readonly string[];
  /** Layers that may be loaded only by `import()` or `require()`, so that nobody pays for what is not used. */
  readonly lazy?: readonly string[];
  /** The layer is the folder's own files; each subfolder must be a layer of its own. */
  readonly isFlat?: boolean;
}

const below = ['core', 'tensor', 'nn', 'optim', 'data', 'process-group', 'comm'];
/** What strategies share (bucket plans, starting from equal parameters, parts of saved state), lives below both. */
const shared = 'strategy';
const strategies = ['ddp', 'zero', 'amp', 'activation-checkpoint', 'checkpoint'];

/** Strategies never import each other. */
const strategyLayers = strategies.map((name): Layer => ({ name, imports: [...below, shared], types: ['backend'] }));

export const layers: readonly Layer[] = [
  { name: 'core', imports: [] },
  { name: 'tensor', imports: ['core'] },
  { name: 'nn', imports: ['core', 'tensor'] },
  { name: 'optim', imports: ['core', 'tensor', 'nn'] },
  { name: 'data', imports: ['core', 'tensor'] },

  // The interface and what all backends share.
  { name: 'backend', imports: ['core'], isFlat: true },
  { name: 'backend/algorithms', imports: ['core'] },
  // Backends never import each other.
  { name: 'backend/mock', imports: ['core', 'backend'] },
  { name: 'backend/grpc', imports: ['core', 'backend', 'backend/algorithms'] },
  { name: 'backend/nccl', imports: ['core', 'backend', 'backend/algorithms'] },
  // The one file that names them all.
  {
    name: 'backend/registry',
    imports: ['core', 'backend', 'backend/mock'],
    types: ['backend/grpc', 'backend/nccl'],
    lazy: ['backend/grpc', 'backend/nccl'],
  },

  { name: 'process-group', imports: ['core', 'tensor', 'backend', 'backend/registry'] },
  { name: 'comm', imports: ['core', 'tensor', 'process-group'], types: ['backend'] },
  { name: shared, imports: below, types: ['backend'] },
  ...strategyLayers,

  {
    name: 'launcher',
    imports: [...below, shared, ...strategies, 'backend', 'backend/registry'],
    lazy: ['backend/grpc'], // `lockstep store`
  },
  { name: 'testing', imports: [...below, shared, ...strategies, 'backend', 'backend/registry', 'backend/mock'] },
  {
    name: 'index',
    imports: [...below, shared, ...strategies, 'backend', 'backend/registry', 'backend/mock', 'launcher', 'testing'],
    types: ['backend/grpc', 'backend/nccl'],
  },
];

/** Packages from outside that only some layers may load; every other dependency is free. */
export const reservedPackages: Readonly<Record<string, readonly string[]>> = {
  '@grpc/grpc-js': ['backend/grpc'],
  'lockstep-nccl': ['backend/nccl'],
};
