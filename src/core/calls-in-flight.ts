/** Calls of a program that are at work, for those who run programs and want to say that one was not awaited. */
import { CallSite } from './call-site';
import { ContextKey } from './context';

export interface CallInFlight {
  /** 'backward()', 'optimizer.step()'. */
  readonly name: string;
  readonly site: CallSite;
}

/** Where calls are noted in this context; nowhere unless somebody, a mock rank say, has put a set here. */
export const callsInFlightKey = new ContextKey<Set<CallInFlight> | undefined>(undefined);

/** Note a call until the returned function is called. Costs a look-up where nobody wants to know. */
export function noteCallInFlight(name: string): () => void {
  const calls = callsInFlightKey.get();
  if (calls === undefined) return () => undefined;
  const call = { name, site: CallSite.capture() };
  calls.add(call);
  return () => void calls.delete(call);
}
