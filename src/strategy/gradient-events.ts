/** What strategies report while they average gradients; progress lines and traces are listeners of these. */

export interface BucketEvent {
  /** Number of the bucket, in launch order. */
  readonly bucket: number;
  readonly numElements: number;
  readonly bytes: number;
}

export interface GradientEvents {
  /** A bucket's collective has been issued. */
  bucketLaunched: (event: BucketEvent) => void;
  /** A bucket's collective has finished; its gradients are final at `stepEnd`. */
  bucketDone: (event: BucketEvent & { readonly durationMs: number }) => void;
  /** All gradients of one synchronisation are final. */
  stepEnd: (event: { readonly buckets: number; readonly bytes: number; readonly durationMs: number }) => void;
}

export const GRADIENT_EVENTS = ['bucketLaunched', 'bucketDone', 'stepEnd'] as const;
