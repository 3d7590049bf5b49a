import type { Import } from './imports';
import type { Violation } from './source-file';

export type Graph = ReadonlyMap<string, readonly string[]>;

/** File to files it needs at run time: static and lazy imports; types leave no trace in the output. */
export function runtimeGraph(imports: readonly Import[]): Graph {
  const graph = new Map<string, string[]>();
  for (const { from, to, kind } of imports) {
    if (kind === 'type' || to === undefined) continue;
    graph.set(from, [...(graph.get(from) ?? []), to]);
  }
  return graph;
}

/**
 * One cycle for each tangle of files, as `a -> b -> a`.
 * Depth-first search: an edge to a file that is still on the path closes a cycle.
 */
export function findCycles(graph: Graph): readonly Violation[] {
  const cycles: Violation[] = [];
  const finished = new Set<string>();
  const path: string[] = [];

  const visit = (file: string): void => {
    if (finished.has(file)) return;
    const start = path.indexOf(file);
    if (start >= 0) {
      cycles.push([...path.slice(start), file].join(' -> '));
      return;
    }
    path.push(file);
    for (const next of graph.get(file) ?? []) visit(next);
    path.pop();
    finished.add(file);
  };

  for (const file of graph.keys()) visit(file);
  return cycles;
}
