/** Checks how the sources import each other: in one direction, without cycles, in small folders. */
import { readdirSync, readFileSync, statSync } from "node:fs";
import { dirname, join } from "node:path";
import { expect, test } from "vitest";

/**
 * The folders and files of `src/` by layer. A layer imports itself and the layers before it. A
 * folder without an entry belongs to the layer of the folder that contains it.
 */
const LAYERS: readonly (readonly string[])[] = [
  ["json.ts", "renders.ts"],
  ["ui"],
  ["document"],
  ["prompts"],
  ["server"],
  ["catalog"],
  ["jobs"],
  ["plan/model"],
  ["sweep", "export"],
  ["state"],
  ["commands"],
  ["widgets"],
  ["plan"],
  ["canvas"],
  ["compare", "mask"],
  ["dialogs"],
  ["panels"],
  ["jobPage", "app"],
  ["main.tsx"],
];

/** Folders that other folders import only through `index.ts`. */
const CLOSED = ["canvas/large"];

const MAX_MODULES = 20;
const SPECIFIER = /\b(?:from|import|import\()\s*"(\.[^"]*)"/g;

const root = new URL(".", import.meta.url).pathname;
const modules = readdirSync(root, { recursive: true, encoding: "utf8" }).filter((name) =>
  /(?<!\.test)\.tsx?$/.test(name),
);
const known = new Set(modules);

/** Returns the module that a specifier names; null for other files, such as styles. */
function resolved(from: string, specifier: string): string | null {
  const path = join(dirname(from), specifier);
  const found = [`${path}.ts`, `${path}.tsx`, join(path, "index.ts")].find((one) => known.has(one));
  if (found === undefined && !statSync(join(root, path)).isFile())
    throw new Error(`${from} imports ${specifier}, which names no file`);
  return found ?? null;
}

/** The imported modules by module, those of types included. */
const imports: ReadonlyMap<string, readonly string[]> = new Map(
  modules.map((name) => [
    name,
    [...readFileSync(join(root, name), "utf8").matchAll(SPECIFIER)].flatMap(
      ([, specifier = ""]) => resolved(name, specifier) ?? [],
    ),
  ]),
);
const edges = [...imports].flatMap(([from, all]) => all.map((to) => [from, to] as const));

/** Returns the index of a module's layer, by its longest entry in the table; -1 without one. */
function layerOf(module: string): number {
  const entry = LAYERS.flat()
    .filter((one) => module === one || module.startsWith(`${one}/`))
    .reduce((best, one) => (one.length > best.length ? one : best), "");
  return LAYERS.findIndex((layer) => layer.includes(entry));
}

/** Returns a cycle of imports; null if there is none. */
function circle(): readonly string[] | null {
  const done = new Set<string>();
  const visit = (module: string, trail: readonly string[]): readonly string[] | null => {
    if (trail.includes(module)) return [...trail.slice(trail.indexOf(module)), module];
    if (done.has(module)) return null;
    for (const next of imports.get(module) ?? []) {
      const found = visit(next, [...trail, module]);
      if (found !== null) return found;
    }
    done.add(module);
    return null;
  };
  for (const module of modules) {
    const found = visit(module, []);
    if (found !== null) return found;
  }
  return null;
}

test("every module has a layer, and every layer has modules", () => {
  expect(modules.filter((module) => layerOf(module) < 0)).toEqual([]);
  const used = new Set(modules.map(layerOf));
  expect(LAYERS.filter((_, at) => !used.has(at))).toEqual([]);
});

test("imports go down the layers", () => {
  const upward = edges.filter(([from, to]) => layerOf(to) > layerOf(from));
  const sideways = edges.filter(([from, to]) => {
    const layer = LAYERS[layerOf(from)] ?? [];
    const entryOf = (module: string) => layer.find((one) => `${module}/`.startsWith(`${one}/`));
    return layerOf(to) === layerOf(from) && layer.length > 1 && entryOf(from) !== entryOf(to);
  });
  expect([...upward, ...sideways].map((edge) => edge.join(" imports "))).toEqual([]);
});

test("imports form no cycle", () => {
  expect(circle()).toBeNull();
});

test("a folder with an entry is imported only through it", () => {
  const past = edges.filter(([from, to]) =>
    CLOSED.some(
      (folder) =>
        to.startsWith(`${folder}/`) &&
        !from.startsWith(`${folder}/`) &&
        to !== `${folder}/index.ts`,
    ),
  );
  expect(past.map((edge) => edge.join(" imports "))).toEqual([]);
});

test("no folder has too many modules", () => {
  const counts = new Map<string, number>();
  for (const module of modules) counts.set(dirname(module), (counts.get(dirname(module)) ?? 0) + 1);
  const listed = [...counts].sort().map(([folder, count]) => `${folder} ${count}`);
  console.log(
    `${modules.length} modules, ${edges.length} imports, ${LAYERS.length} layers\n${listed.join(", ")}`,
  );
  expect([...counts].filter(([, count]) => count > MAX_MODULES)).toEqual([]);
});
