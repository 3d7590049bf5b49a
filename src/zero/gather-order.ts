/** Which unit is needed next, by the order of the last pass. */
import type { GatherUnit } from './gather-unit';

/**
 * Follows one kind of pass, forward or backward. As long as a pass goes as the last one did, the unit that came next then
 * is expected next; from the first difference on nothing is. Ranks that run the same program expect the same.
 */
export class GatherOrder {
  #last: readonly GatherUnit[] = [];
  #current: GatherUnit[] = [];
  #isAsLast = true;

  /** A pass begins. */
  begin(): void {
    this.#current = [];
    this.#isAsLast = true;
  }

  /** `unit` is needed now. @returns the one that is expected next */
  note(unit: GatherUnit): GatherUnit | undefined {
    const place = this.#current.push(unit) - 1;
    this.#isAsLast &&= this.#last[place] === unit;
    return this.#isAsLast ? this.#last[place + 1] : undefined;
  }

  /** The pass is over; the next one is expected to go like it. */
  end(): void {
    this.#last = this.#current;
    this.#current = [];
  }
}
