/** When gradients are averaged over the ranks. */
export const GradSyncStrategy = {
  /** All at once, when `syncGradients()` is called. */
  Synchronous: 'Synchronous',
  /** Bucket by bucket while backward runs; `syncGradients()` waits for the rest. */
  Overlapped: 'Overlapped',
  /** Never: every rank keeps its own gradients. */
  NoSync: 'NoSync',
} as const;
export type GradSyncStrategy = (typeof GradSyncStrategy)[keyof typeof GradSyncStrategy];
