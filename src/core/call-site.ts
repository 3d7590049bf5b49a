/** Where in the user's program a call was made. */
import { dirname, isAbsolute, join, relative, sep } from 'node:path';
import { ContextKey } from './context';

/** Frames that are looked through for one outside Lockstep: a hook of DDP calls a collective a dozen frames deep. */
const MAX_FRAMES = 20;

/** This file's folder is core below dist/ (or src/ in a checkout) of the package. */
const PACKAGE_ROOT = dirname(dirname(__dirname));

/** Our own frames lie in dist/, or in src/ where source maps are on: ts-jest, Vitest and tsx turn them on. */
const LIBRARY_ROOTS = ['dist', 'src'].map((folder) => join(PACKAGE_ROOT, folder) + sep);

const entryKey = new ContextKey<CallSite | undefined>(undefined);

/** A stack that is formatted only when somebody asks: capturing costs about a microsecond, formatting a hundred. */
export class CallSite {
  readonly stack?: string;
  /** Where the call of the program was made that this one belongs to. */
  readonly #entry: CallSite | undefined = entryKey.get();

  /** The stack of whoever calls this. */
  static capture(): CallSite {
    const callSite = new CallSite();
    const limit = Error.stackTraceLimit;
    Error.stackTraceLimit = MAX_FRAMES;
    Error.captureStackTrace(callSite);
    Error.stackTraceLimit = limit;
    return callSite;
  }

  /**
   * As `src/train.ts:12:5`. Where no frame of the user's is near (a gradient hook of DDP, say, runs from the event loop), the
   * line of the call that it belongs to, see `fromHere`; else our own outermost file, and that it is ours.
   */
  get sourceLine(): string | undefined {
    const { line, outermost } = this.#find();
    if (line !== undefined) return line;
    for (let entry = this.#entry; entry !== undefined; entry = entry.#entry) {
      const ofEntry = entry.#find().line;
      if (ofEntry !== undefined) return ofEntry;
    }
    return outermost === undefined ? undefined : `lockstep/${outermost} (no line of your program is on the stack)`;
  }

  /** The nearest line of the program, and our own outermost file. */
  #find(): { readonly line?: string; readonly outermost?: string | undefined } {
    let outermost: string | undefined;
    for (const frame of (this.stack ?? '').split('\n').slice(1)) {
      const place = placeOf(frame);
      if (place === undefined || isNodes(place)) continue;
      const root = LIBRARY_ROOTS.find((folder) => place.startsWith(folder));
      if (root === undefined) return { line: shorten(place) };
      const file = place.slice(root.length).replace(/:\d+:\d+$/, '');
      if (!file.startsWith(`core${sep}`)) outermost = file; // core/ only carries the context along
    }
    return { outermost };
  }
}

/**
 * Run `fn`, a call that the program makes, so that what goes wrong in it later, far from the program's stack, can name the line
 * of the call. One capture a call: a few microseconds. Returns what `fn` returns.
 */
export function fromHere<R>(fn: () => R): R {
  return entryKey.run(CallSite.capture(), fn);
}

/** `at async train (/home/me/train.ts:12:5)` gives `/home/me/train.ts:12:5`. */
function placeOf(frame: string): string | undefined {
  const match = /\(?((?:file:\/\/)?[^()\s][^()]*:\d+:\d+)\)?$/.exec(frame.replace(/^\s*at (async )?/, '').trim());
  return match?.[1]?.replace(/^file:\/\//, '');
}

function isNodes(place: string): boolean {
  return place.startsWith('node:') || place.startsWith('internal/');
}

function shorten(place: string): string {
  if (!isAbsolute(place)) return place;
  const short = relative(process.cwd(), place);
  return short.startsWith('..') ? place : short;
}
