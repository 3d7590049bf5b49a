/**
 * Which parameters are gathered together under stage 3, and which modules' calls gather them. Pure, the same on every rank.
 *
 * [Note: gather units] A module that owns parameters is a unit. A subtree of at most `mergeElements` elements is one unit,
 * that of its root; a larger module, which would hold it for longer than need be, takes up only subtrees of a 32nd of that
 * (norms, biases), which are not worth a collective of their own. A tied parameter belongs to the lowest module above all its owners. A unit is gathered while its module runs and,
 * since modules may be called without those above them, while any owner of its parameters runs.
 */
import type { AnyModule } from '../nn/any-module';
import { ownParametersOf } from '../nn/module-tree';
import type { Parameter } from '../nn/parameter';

export interface AssignedUnit {
  /** Name of the module whose unit it is; '' for the root. */
  readonly name: string;
  readonly parameters: readonly Parameter[];
  /** The unit's module, then the owners of its parameters: a call of any of them needs the unit. */
  readonly modules: readonly AnyModule[];
}

export interface AssignmentLimits {
  /** Elements up to which a subtree is one unit; 0 for one unit per module that owns parameters. */
  readonly mergeElements: number;
  /** Parameters of at most so many elements are left out: they are never released. */
  readonly persistenceThreshold: number;
}

/** The units, in the order of their first parameter's registration. Parameters that persist are in none. */
export function assignUnits(root: AnyModule, limits: AssignmentLimits): AssignedUnit[] {
  const tree = new ParameterTree(root, limits.persistenceThreshold);
  const units: AssignedUnit[] = [];
  const close = ({ name, module, parameters }: OpenUnit): void => {
    if (parameters.length === 0) return;
    const owners = parameters.flatMap((parameter) => tree.ownersOf(parameter));
    units.push({ name, parameters: tree.inOrder(parameters), modules: [...new Set([module, ...owners])] });
  };
  const rest = collect(root, tree, limits.mergeElements, close);
  if (rest !== undefined) close(rest);
  return units.sort((a, b) => tree.placeOf(a.parameters[0]) - tree.placeOf(b.parameters[0]));
}

const TINY_SHARE = 32;

/** What of a subtree is in no unit yet. */
interface OpenUnit {
  readonly name: string;
  readonly module: AnyModule;
  readonly parameters: readonly Parameter[];
  readonly numElements: number;
}

/** Close the units of a subtree. @returns what may join the unit of the module above: all of it, if it is small */
function collect(
  module: AnyModule,
  tree: ParameterTree,
  mergeElements: number,
  close: (unit: OpenUnit) => void,
): OpenUnit | undefined {
  const name = tree.nameOf(module);
  const children = tree.childrenOf(module);
  const open = children
    .map((child) => collect(child, tree, mergeElements, close))
    .filter((child) => child !== undefined);
  const own = openUnit(name, module, tree.parametersOf(module));
  const all = openUnit(name, module, [...own.parameters, ...open.flatMap(({ parameters }) => parameters)]);
  const isWhole = open.length === children.length;
  if (isWhole && all.numElements <= mergeElements && isCallable(module)) return all;
  const tiny = open.filter((child) => child.numElements <= mergeElements / TINY_SHARE && isCallable(module));
  for (const child of open) if (!tiny.includes(child)) close(child);
  close(openUnit(name, module, [...own.parameters, ...tiny.flatMap(({ parameters }) => parameters)]));
  return undefined;
}

function openUnit(name: string, module: AnyModule, parameters: readonly Parameter[]): OpenUnit {
  return { name, module, parameters, numElements: parameters.reduce((sum, { size }) => sum + size, 0) };
}

/** False for a class without `forward`, which only holds modules: its call cannot gather for them. */
function isCallable(module: AnyModule): boolean {
  const prototype = Object.getPrototypeOf(module) as { readonly forward?: unknown };
  return typeof prototype.forward === 'function';
}

/** The tree of modules, with each parameter at the lowest module above all that own it. */
class ParameterTree {
  readonly #names = new Map<AnyModule, string>();
  readonly #parents = new Map<AnyModule, AnyModule>();
  readonly #owners = new Map<Parameter, AnyModule[]>();
  readonly #assigned = new Map<AnyModule, Parameter[]>();
  readonly #places = new Map<Parameter, number>();

  constructor(root: AnyModule, persistenceThreshold: number) {
    for (const [name, module] of root.namedModules()) this.#names.set(module, name);
    for (const module of this.#names.keys()) {
      for (const child of module.children()) {
        if (child !== root && !this.#parents.has(child)) this.#parents.set(child, module);
      }
    }
    for (const module of this.#names.keys()) {
      for (const parameter of ownParametersOf(module)) {
        const owners = this.#owners.get(parameter);
        if (owners === undefined) this.#owners.set(parameter, [module]);
        else owners.push(module);
      }
    }
    for (const [place, parameter] of root.parameters().entries()) {
      this.#places.set(parameter, place);
      if (parameter.size <= persistenceThreshold) continue;
      const home = this.#lowestAbove(this.ownersOf(parameter));
      const others = this.#assigned.get(home);
      if (others === undefined) this.#assigned.set(home, [parameter]);
      else others.push(parameter);
    }
  }

  nameOf(module: AnyModule): string {
    return this.#names.get(module) as string;
  }

  /** The modules that hold the parameter as a property of their own. */
  ownersOf(parameter: Parameter): readonly AnyModule[] {
    return this.#owners.get(parameter) as AnyModule[];
  }

  /** The children that have no other parent before this one. */
  childrenOf(module: AnyModule): AnyModule[] {
    return module.children().filter((child) => this.#parents.get(child) === module);
  }

  parametersOf(module: AnyModule): readonly Parameter[] {
    return this.#assigned.get(module) ?? [];
  }

  placeOf(parameter: Parameter | undefined): number {
    return this.#places.get(parameter as Parameter) as number;
  }

  inOrder(parameters: readonly Parameter[]): Parameter[] {
    return [...parameters].sort((a, b) => this.placeOf(a) - this.placeOf(b));
  }

  #lowestAbove(modules: readonly AnyModule[]): AnyModule {
    const paths = modules.map((module) => this.#pathTo(module));
    const [first, ...others] = paths as [AnyModule[], ...AnyModule[][]];
    let lowest = first[0] as AnyModule;
    for (const [depth, module] of first.entries()) {
      if (others.every((path) => path[depth] === module)) lowest = module;
      else break;
    }
    return lowest;
  }

  /** From the root down to `module`. */
  #pathTo(module: AnyModule): AnyModule[] {
    const path: AnyModule[] = [];
    for (let at: AnyModule | undefined = module; at !== undefined; at = this.#parents.get(at)) path.unshift(at);
    return path;
  }
}
