import { GatherUnit, type Gatherable } from '../../../src/zero/gather-unit';

/** A flat buffer whose gathers arrive when the test says so. */
class FakeFlat implements Gatherable {
  isWhole = false;
  launched = 0;
  released = 0;
  readonly #flights: { readonly resolve: () => void; readonly reject: (error: Error) => void }[] = [];

  async gather(): Promise<void> {
    this.launched++;
    await new Promise<void>((resolve, reject) => this.#flights.push({ resolve, reject }));
    this.isWhole = true;
  }

  release(): void {
    this.released++;
    this.isWhole = false;
  }

  async arrive(): Promise<void> {
    this.#flights.shift()?.resolve();
    await settled();
  }

  async fail(): Promise<void> {
    this.#flights.shift()?.reject(new Error('lost'));
    await settled();
  }
}

async function settled(): Promise<void> {
  for (let i = 0; i < 20; i++) await Promise.resolve();
}

describe('a gather unit', () => {
  test('is gathered for its first holder and released by the last', async () => {
    const flat = new FakeFlat();
    const unit = new GatherUnit('u', [flat]);
    const [a, b] = [{}, {}];
    const first = unit.hold(a);
    expect([unit.state, flat.launched]).toEqual(['gathering', 1]);
    const second = unit.hold(b);
    await flat.arrive();
    await Promise.all([first, second]);
    expect([unit.state, flat.launched]).toEqual(['whole', 1]);
    unit.giveBack(a);
    unit.giveBack(a);
    expect(unit.state).toBe('whole');
    unit.giveBack(b);
    expect([unit.state, flat.isWhole]).toEqual(['released', false]);
  });

  test('shares the gather of a prefetch, and one holder counts once', async () => {
    const flat = new FakeFlat();
    const unit = new GatherUnit('u', [flat]);
    unit.prefetch();
    const holder = {};
    const held = Promise.all([unit.hold(holder), unit.hold(holder)]);
    await flat.arrive();
    await held;
    expect(flat.launched).toBe(1);
    unit.giveBack(holder);
    expect(unit.state).toBe('released');
  });

  test('lets a prefetch in vain go when it arrives', async () => {
    const flat = new FakeFlat();
    const unit = new GatherUnit('u', [flat]);
    unit.prefetch();
    unit.drop();
    expect(unit.state).toBe('released');
    await flat.arrive();
    await unit.settle();
    expect(flat.isWhole).toBe(false);
  });

  test('launches another gather after a drop, whether the first has arrived or not', async () => {
    for (const arrivesBefore of [true, false]) {
      const flat = new FakeFlat();
      const unit = new GatherUnit('u', [flat]);
      unit.prefetch();
      if (arrivesBefore) await flat.arrive();
      unit.drop();
      const held = unit.hold({});
      expect(flat.launched).toBe(2);
      await flat.arrive();
      if (!arrivesBefore) await flat.arrive();
      await held;
      expect([unit.state, flat.isWhole]).toEqual(['whole', true]);
    }
  });

  test('is released and held by nobody after a gather that failed, and may be tried again', async () => {
    const [whole, lost] = [new FakeFlat(), new FakeFlat()];
    const unit = new GatherUnit('u', [whole, lost]);
    const holder = {};
    const held = unit.hold(holder);
    await whole.arrive();
    await lost.fail();
    await expect(held).rejects.toThrow('lost');
    expect([unit.state, unit.isHeld, whole.isWhole]).toEqual(['released', false, false]);
    const again = unit.hold(holder);
    await whole.arrive();
    await lost.arrive();
    await again;
    expect(unit.state).toBe('whole');
  });

  test('a prefetch that fails is no unhandled rejection', async () => {
    const flat = new FakeFlat();
    const unit = new GatherUnit('u', [flat]);
    unit.prefetch();
    await flat.fail();
    expect(unit.state).toBe('released');
  });
});
