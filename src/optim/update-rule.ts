import type { FlatUpdate } from '../core/flat-update';
import type { FloatBuffer } from './float-buffer';

/** What `Optimizer.update` works on: a parameter or, if the optimizer is element-wise, any part of one. */
export interface UpdateTarget {
  /** Changed in place. */
  readonly parameter: FloatBuffer;
  /** As long as the parameter; only read. */
  readonly gradient: FloatBuffer;
  /** One buffer for each of `stateNames`, as long as the parameter, zero at first; changed in place. */
  readonly state: Readonly<Record<string, FloatBuffer>>;
  /** The number of this update of this parameter, from 1. */
  readonly step: number;
}

/** The part of an Optimizer that says how elements change. */
export interface UpdateRule<Settings> {
  /** The buffers kept for each parameter of a group with these settings. */
  stateNames(settings: Settings): readonly string[];

  /** One update, in place. Synchronous, and a pure function of its arguments. */
  update(target: UpdateTarget, settings: Settings): void;

  /**
   * What `update` computes at update number `step`, as the numbers that a fused kernel of an accelerator takes; undefined for
   * settings that no kernel knows. A rule without it steps in host memory alone.
   */
  flatUpdate?(settings: Settings, step: number): FlatUpdate | undefined;
}
