/** Distributed training: the same code on a mock world in one process, on many processes, and on many GPUs. */

// core
export { type Clock, type Timer } from './core/clock';
export { type DeviceBuffer } from './core/device-buffer';
export { DTYPES, dtypeOf, type DataBuffer, type DType, type HostBuffer } from './core/dtype';
export { type AdamUpdate, type FlatUpdate, type SGDUpdate } from './core/flat-update';
export { fromWire, toWire, type WireError } from './core/error-wire';
export {
  BackendUnavailableError,
  CheckpointError,
  ClosedError,
  CollectiveMismatchError,
  CollectiveTimeoutError,
  DeadlockError,
  InternalError,
  InvalidArgumentError,
  LockstepError,
  NativeError,
  NotInGroupError,
  PeerLostError,
  UnsupportedError,
  WorldError,
  isLockstepError,
  type ErrorContext,
  type ErrorScope,
  type LockstepErrorCode,
} from './core/errors';
export { Generator, type GeneratorState } from './core/generator';
export { BFloat16Buffer, Float16Buffer } from './core/half-buffer';
export { type Logger } from './core/logger';
export { memory, type MemoryCategory, type MemoryStats } from './core/memory-account';
export { manualSeed } from './core/random';
export { ReduceOp } from './core/reduce-op';
export { Work, type WorkHandle, type WorkInfo, type WorkObserver } from './core/work';

// tensor
export { afterBackward } from './tensor/backward-session';
export {
  type LeafOptions,
  type NestedArray,
  type RandomOptions,
  type TensorData,
  type TensorOptions,
} from './tensor/creation';
export { customFunction, type CustomFunction, type InputGradients } from './tensor/custom-function';
export { concat, embedding, indexSelect, stack, where, type CrossEntropyOptions } from './tensor/functional';
export { type GradientGate, type GradientHook } from './tensor/gradient-leaf';
export { enableGrad, isGradEnabled, noGrad } from './tensor/gradient-mode';
export { type LossReduction } from './tensor/operators/cross-entropy';
export { type Dims } from './tensor/operators/reductions';
export { type Shape } from './tensor/shape';
export { withMemoryCategory, type Storage } from './tensor/storage';
export { Tensor } from './tensor/tensor';
export { tidy } from './tensor/tidy';

// nn
export { GELU, ReLU, SiLU, Sigmoid, Softmax, Tanh, type GeluForm } from './nn/activations';
export { type AnyModule, type LoadStateResult, type Named, type StateDict } from './nn/any-module';
export { Conv2d, type Conv2dOptions } from './nn/conv2d';
export { Dropout } from './nn/dropout';
export { Embedding } from './nn/embedding';
export { Flatten } from './nn/flatten';
export { type GeneratorOptions } from './nn/initial-values';
export { Linear, type LinearOptions } from './nn/linear';
export { crossEntropy, mseLoss, type MseLossOptions } from './nn/losses';
export { Module } from './nn/module';
export {
  type BackwardHook,
  type ForwardCall,
  type ForwardCleanup,
  type ForwardHook,
  type ForwardPreHook,
} from './nn/module-hooks';
export { MultiHeadAttention, type MultiHeadAttentionOptions } from './nn/multi-head-attention';
export { LayerNorm, RMSNorm, type NormOptions } from './nn/normalization';
export { Parameter, type ParameterOptions, type Placement, type PlacementGroup } from './nn/parameter';
export { Sequential } from './nn/sequential';
export { TransformerBlock, type TransformerBlockOptions } from './nn/transformer-block';

// optim
export { Adam, AdamW, type AdamOptions, type AdamSettings } from './optim/adam';
export { clipGradNorm, type ClipGradNormOptions } from './optim/clip-grad-norm';
export { CosineAnnealingLR, type CosineAnnealingLROptions } from './optim/cosine-annealing-lr';
export { CosineWithWarmup, type CosineWithWarmupOptions } from './optim/cosine-with-warmup';
export { type FloatBuffer } from './optim/float-buffer';
export { Optimizer } from './optim/optimizer';
export { type OptimizerState, type SavedParamGroup, type SavedParameterState } from './optim/optimizer-state';
export { type OptimizerParams, type ParamGroup, type ParamGroupOptions, type ParseSettings } from './optim/param-group';
export { type ParameterState } from './optim/parameter-state';
export { Scheduler, type ScheduledOptimizer, type SchedulerState } from './optim/scheduler';
export { SGD, type SGDOptions, type SGDSettings } from './optim/sgd';
export { StepLR, type StepLROptions } from './optim/step-lr';
export { type UpdateRule, type UpdateTarget } from './optim/update-rule';

// data
export { type Collated } from './data/collate';
export { DataLoader, type DataLoaderOptions } from './data/data-loader';
export { TensorDataset, type Dataset, type Tensors } from './data/dataset';
export {
  DistributedSampler,
  type DistributedSamplerOptions,
  type DistributedSamplerState,
} from './data/distributed-sampler';

// backend
export { type CallOp, type CollectiveOp, type PointToPointOp } from './backend/call';
export { type LedgerEntry, type LedgerRecord } from './backend/ledger';
export type {
  AllToAllOptions,
  Backend,
  BackendCapabilities,
  CallOptions,
  CountsOptions,
  P2pOp,
} from './backend/backend';
export { type BackendDevice, type FlatUpdateTarget } from './backend/backend-device';
export { type BackendStore, type CompareAndSetResult } from './backend/backend-store';
export { MockBackend } from './backend/mock/mock-backend';
export { type Fault, type MockOptions } from './backend/mock/mock-options';
export {
  backendNames,
  createBackend,
  isNcclAvailable,
  ncclUnavailableReason,
  registerBackend,
  type BackendFactory,
  type BackendInit,
  type DataPlane,
  type TlsOptions,
} from './backend/registry';

// process groups
export type { Closed, CollectiveEnd, CollectiveStart, GroupEvents, PeerLost, Poisoned } from './process-group/events';
export { ProcessGroup, type ProcessGroupOptions } from './process-group/process-group';
export { type Store, type StoreCallOptions, type StoreValue } from './process-group/store';
export { type TensorP2pOp } from './process-group/tensor-collectives';
export { World, type WorldBackendOptions } from './process-group/world';
export { type WorldOptions } from './process-group/world-options';

// collectives on tensors
export { barrier, isMainProcess, rank, worldSize } from './comm/comm';
export { allGather, allToAll, broadcast, broadcastFrom, gatherTo, scatterFrom } from './comm/movement';
export { recvTensor, sendTensor, type PointToPointOptions } from './comm/point-to-point';
export {
  allReduceMax,
  allReduceMean,
  allReduceMin,
  allReduceProduct,
  allReduceSum,
  reduceScatterMean,
  reduceScatterSum,
  reduceTo,
  ringAllReduce,
} from './comm/reductions';
export { gatherTensor, scatterTensor } from './comm/shards';
export { syncGradient, syncGradients } from './comm/sync-gradients';

// mixed precision
export { autocast, type AutocastOptions } from './amp/autocast';
export { GradScaler, type GradScalerBaseOptions, type GradScalerOptions } from './amp/grad-scaler';
export {
  type DeepSpeedScaleOptions,
  type LossScaleOptions,
  type LossScaleState,
  type TorchScaleOptions,
} from './optim/loss-scale';
export { type ScalableOptimizer } from './optim/scalable-optimizer';

// memory-efficient training
export { checkpoint } from './activation-checkpoint/activation-checkpoint';
export { checkpointSequential, type ChainedModule } from './activation-checkpoint/checkpoint-sequential';
export { withFullParameters } from './zero/full-parameters';
export { largestModel, planMemory, type MemoryPlanOptions, type StageMemory } from './zero/memory-plan';
export { type ModuleSource, type OptimizerSource } from './zero/wrap-arguments';
export { zeroWrap, type ZeroWrapped } from './zero/zero';
export { ZeroModule } from './zero/zero-module';
export { ZeroOptimizer } from './zero/zero-optimizer';
export { type ShardDevice, type ZeroOptions, type ZeroPrecision, type ZeroStage } from './zero/zero-options';

// checkpoints
export {
  loadCheckpoint,
  saveCheckpoint,
  saveCheckpointAsync,
  type LoadCheckpointOptions,
  type LoadedCheckpoint,
  type SaveCheckpointOptions,
} from './checkpoint/checkpoint';
export { type PendingCheckpoint } from './checkpoint/pending-save';
export {
  readSafetensors,
  writeSafetensors,
  type ReadSafetensorsOptions,
  type SafetensorsContent,
} from './checkpoint/safetensors';
export { type Stateful } from './checkpoint/small-state';
export { type CheckpointState } from './checkpoint/training-state';
export {
  partedState,
  type JsonValue,
  type PartedState,
  type StateParts,
  type StateReader,
  type TensorForm,
  type TensorPart,
} from './strategy/state-parts';

// data parallel training
export { allReduceHook, bf16CompressHook, fp16CompressHook, type CommHook, type HookBucket } from './ddp/comm-hooks';
export { DistributedDataParallel, type DistributedDataParallelOptions } from './ddp/ddp';
export { GradSyncStrategy } from './ddp/grad-sync-strategy';
export { GradientBucket } from './ddp/gradient-bucket';
export { GradientSynchronizer } from './ddp/gradient-synchronizer';
export { type JoinOptions } from './ddp/join';
export { type BucketEvent, type GradientEvents, type GradientEvents as DdpEvents } from './strategy/gradient-events';
export { type WrappedModule, type ModuleInput, type ModuleOutput } from './strategy/wrapped-module';
