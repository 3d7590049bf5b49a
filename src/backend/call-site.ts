/** Where in the user's program a call was made. */
import { dirname, isAbsolute, join, relative, sep } from 'node:path';

/** Frames that are looked through for one outside Lockstep: a hook of DDP calls a collective a dozen frames deep. */
const MAX_FRAMES = 20;

/** This file's folder is backend below dist/ (or src/ in a checkout) of the package. */
const PACKAGE_ROOT = dirname(dirname(__dirname));

/** Our own frames lie in dist/, or in src/ where source maps are on: ts-jest, Vitest and tsx turn them on. */
const LIBRARY_ROOTS = ['dist', 'src'].map((folder) => join(PACKAGE_ROOT, folder) + sep);

/** A stack that is formatted only when somebody asks: capturing costs about a microsecond, formatting a hundred. */
export class CallSite {
  readonly stack?: string;

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
   * As `src/train.ts:12:5`. Where no frame of the user's is near (a gradient hook of DDP, say, runs from the event loop),
   * our own outermost file, and that it is ours.
   */
  get sourceLine(): string | undefined {
    let outermost: string | undefined;
    for (const frame of (this.stack ?? '').split('\n').slice(1)) {
      const place = placeOf(frame);
      if (place === undefined || isNodes(place)) continue;
      const root = LIBRARY_ROOTS.find((folder) => place.startsWith(folder));
      if (root === undefined) return shorten(place);
      const file = place.slice(root.length).replace(/:\d+:\d+$/, '');
      if (!file.startsWith(`core${sep}`)) outermost = file; // core/ only carries the context along
    }
    return outermost === undefined ? undefined : `lockstep/${outermost} (no line of your program is on the stack)`;
  }
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
