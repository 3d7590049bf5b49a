/** What `load` loads, from a second copy of the package, as when two versions of it are installed. */
export function secondCopy<Module>(load: () => Module): Module {
  const copies: Module[] = [];
  jest.isolateModules(() => copies.push(load()));
  return copies[0] as Module;
}
