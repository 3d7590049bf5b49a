import { ContextKey } from '../core/context';

/**
 * True inside `noSync(fn)`: backward keeps gradients on this rank, and steps that use them are meant.
 * Per asynchronous context, so that a rank inside noSync changes nothing for the others. See [Note: ambient state].
 */
export const noSyncKey = new ContextKey<boolean>(false);
