import { LaunchQueue } from '../../../../src/backend/nccl/launch-queue';

function gate(): { readonly opened: Promise<void>; readonly open: () => void; readonly fail: () => void } {
  let open = (): void => undefined;
  let fail = (): void => undefined;
  const opened = new Promise<void>((resolve, reject) => {
    open = resolve;
    fail = () => reject(new Error('never'));
  });
  return { opened, open, fail };
}

const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

test('what is ready is launched at once', () => {
  const launched: string[] = [];
  const queue = new LaunchQueue();
  queue.add(() => void launched.push('a'));
  queue.add(() => void launched.push('b'));
  expect(launched).toEqual(['a', 'b']);
});

test('a launch that waits holds up the later ones, which keep their order', async () => {
  const launched: string[] = [];
  const queue = new LaunchQueue();
  const [first, second] = [gate(), gate()];
  queue.add(() => void launched.push('a'), first.opened);
  queue.add(() => void launched.push('b'));
  queue.add(() => void launched.push('c'), second.opened);
  queue.add(() => void launched.push('d'));
  second.open();
  await turn();
  expect(launched).toEqual([]);
  first.open();
  await turn();
  expect(launched).toEqual(['a', 'b', 'c', 'd']);
  queue.add(() => void launched.push('e'));
  expect(launched.at(-1)).toBe('e');
});

test('what fails before it is launched is passed over', async () => {
  const launched: string[] = [];
  const queue = new LaunchQueue();
  const first = gate();
  queue.add(() => void launched.push('a'), first.opened);
  queue.add(() => void launched.push('b'));
  first.fail();
  await turn();
  expect(launched).toEqual(['b']);
});

test('a launch that takes its time, as a split, holds up the later ones', async () => {
  const launched: string[] = [];
  const queue = new LaunchQueue();
  const split = gate();
  queue.add(() => split.opened);
  queue.add(() => void launched.push('after'));
  await turn();
  expect(launched).toEqual([]);
  split.open();
  await turn();
  expect(launched).toEqual(['after']);
});
