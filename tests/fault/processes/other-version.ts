/** Preloaded into a process that must speak another version of the protocol than its peers. */
import Module from 'node:module';

/** Node's own loader; every `require` goes through it. */
const loader = Module as unknown as { _load(request: string, ...rest: unknown[]): unknown };
const load = loader._load.bind(Module);

loader._load = (request, ...rest) => {
  const loaded = load(request, ...rest);
  if (!/(^|\/)frame(\.ts)?$/.test(request)) return loaded;
  return { ...(loaded as object), PROTOCOL_VERSION: 99 };
};
