/** When the memory of one gather unit is there, and who needs it. */

/** Flat buffers whose parts are on all ranks. FlatUnit is one. */
export interface Gatherable {
  readonly isWhole: boolean;
  /** Launch the all-gather before it returns; settles when the parameters are there. Without effect on failure. */
  gather(): Promise<void>;
  /** Let go of all but this rank's part. */
  release(): void;
}

/** Stands for whoever needs a unit: a module's call, a scope of withFullParameters. Compared by identity. */
export type Holder = object;

/**
 * The parameters that come and go together: released, in flight, or whole.
 *
 * [Note: holders of a unit] A unit is whole while somebody holds it. Holding it twice for the same holder is as good as
 * once, and so is giving it back, so that a failure half way needs no book-keeping. Whoever needs a unit while a gather is
 * in flight waits for that one, a prefetch included.
 *
 * [Note: gathers and time] All ranks launch the same gathers in the same order, so whether one is launched must not depend
 * on when another arrives. A unit that was dropped counts as released at once, even if its gather is still in flight:
 * the next `hold` launches another, as it does on a rank where the first had arrived.
 */
export class GatherUnit {
  readonly name: string;
  readonly #flats: readonly Gatherable[];
  readonly #holders = new Set<Holder>();
  /** False from the moment that the unit was dropped, whatever is in flight. */
  #isWanted = false;
  /** The gather in flight that is waited for. */
  #arrival: Promise<void> | undefined;
  /** Those, and those that were dropped. */
  readonly #inFlight = new Set<Promise<void>>();

  /** @param flats of one dtype each; released */
  constructor(name: string, flats: readonly Gatherable[]) {
    this.name = name;
    this.#flats = flats;
  }

  get state(): 'released' | 'gathering' | 'whole' {
    if (!this.#isWanted) return 'released';
    return this.#arrival === undefined ? 'whole' : 'gathering';
  }

  /** Whether one of `flats` is among the unit's. */
  hasAny(flats: readonly Gatherable[]): boolean {
    return this.#flats.some((flat) => flats.includes(flat));
  }

  get isHeld(): boolean {
    return this.#holders.size > 0;
  }

  /**
   * Keep the unit whole for `holder` until it is given back; settles when the parameters are there.
   * @throws what the gather failed with; nothing is held then
   */
  async hold(holder: Holder): Promise<void> {
    this.#holders.add(holder);
    try {
      await this.#gather();
    } catch (error) {
      this.giveBack(holder);
      throw error;
    }
  }

  /** Launch the gather if the parameters are away, for a `hold` that is expected; `drop` undoes it. Never throws. */
  prefetch(): void {
    this.#gather().catch(() => undefined); // whoever holds the unit then sees why, or gathers again and fails as well
  }

  /** `holder` needs the unit no more; the memory goes with the last one. */
  giveBack(holder: Holder): void {
    if (this.#holders.delete(holder)) this.drop();
  }

  /** Let go of the memory if nobody holds it; what is in flight goes when it arrives. */
  drop(): void {
    if (this.isHeld || !this.#isWanted) return;
    this.#isWanted = false;
    this.#arrival = undefined;
    this.#release();
  }

  /** Wait for all gathers in flight, whatever comes of them. */
  async settle(): Promise<void> {
    await Promise.allSettled(this.#inFlight);
  }

  async #gather(): Promise<void> {
    if (!this.#isWanted) this.#launch();
    await this.#arrival;
  }

  #launch(): void {
    const flight = this.#fetch().finally(() => {
      this.#inFlight.delete(flight);
      if (this.#arrival === flight) this.#arrival = undefined;
      if (!this.#isWanted) this.#release();
    });
    this.#isWanted = true;
    this.#arrival = flight;
    this.#inFlight.add(flight);
  }

  async #fetch(): Promise<void> {
    const arrivals = await Promise.allSettled(this.#flats.map((flat) => flat.gather()));
    const failed = arrivals.find((arrival) => arrival.status === 'rejected');
    if (failed === undefined) return;
    this.#isWanted = false;
    throw failed.reason;
  }

  #release(): void {
    for (const flat of this.#flats) flat.release();
  }
}
