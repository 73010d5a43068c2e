/** Finds node types: by words, by what is nearly written so, by use, by category or pack. */
import Fuse, { type Expression } from "fuse.js";
import { type Catalog, type NodeType, offered } from "./catalog";

const NAMES = ["title", "name", "aliases"];

const ENOUGH = 10; // that have every word: nobody looks for others

const INDICES = new WeakMap<Catalog, Fuse<NodeType>>();

/**
 * What has every word of a query comes first; where that is little, what is nearly written so
 * follows. Among equals, what was used lately and often comes first.
 */
export function searched(
  catalog: Catalog,
  query: string,
  used: readonly string[] = [],
): readonly NodeType[] {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const uses = usesOf(used);
  const found = [...catalog.values()].flatMap((type) => {
    const rank = rankOf(type, words);
    return rank === null ? [] : [{ type, rank, uses: uses.get(type.name) ?? 0 }];
  });
  const exact = found
    .sort(
      (one, other) =>
        one.rank - other.rank ||
        other.uses - one.uses ||
        one.type.title.localeCompare(other.type.title),
    )
    .map(({ type }) => type);
  if (words.length === 0 || exact.length >= ENOUGH) return exact;
  const known = new Set(exact);
  return [...exact, ...nearly(catalog, words).filter((type) => !known.has(type))];
}

/**
 * Where the words stand: 0 for all of a title or a name, 1 for the beginning of one, null where a
 * word is missing.
 */
function rankOf(type: NodeType, words: readonly string[]): number | null {
  const called = [type.title, type.name].map((name) => name.toLowerCase());
  const names = [...called, ...type.aliases].join(" ").toLowerCase();
  const texts = `${names} ${type.category} ${type.description}`.toLowerCase();
  if (!words.every((word) => texts.includes(word))) return null;
  if (called.includes(words.join(" "))) return 0;
  if (called.some((name) => name.startsWith(words[0] ?? ""))) return 1;
  return words.every((word) => names.includes(word)) ? 2 : 3;
}

/** What each word is nearly a part of the names of. */
function nearly(catalog: Catalog, words: readonly string[]): readonly NodeType[] {
  const asked: Expression = {
    $and: words.map((word) => ({ $or: NAMES.map((key) => ({ [key]: word })) })),
  };
  return indexOf(catalog)
    .search(asked)
    .map(({ item }) => item);
}

function indexOf(catalog: Catalog): Fuse<NodeType> {
  let index = INDICES.get(catalog);
  if (index === undefined) {
    const options = { keys: NAMES, threshold: 0.45, ignoreLocation: true, minMatchCharLength: 2 };
    index = new Fuse([...catalog.values()], options);
    INDICES.set(catalog, index);
  }
  return index;
}

/** How much each was used; the later, the more. `used` begins with the last use. */
function usesOf(used: readonly string[]): ReadonlyMap<string, number> {
  const found = new Map<string, number>();
  used.forEach((name, place) => found.set(name, (found.get(name) ?? 0) + 1 / (place + 1)));
  return found;
}

/** What was used, the most first. */
export function lately(catalog: Catalog, used: readonly string[]): readonly NodeType[] {
  return [...usesOf(used)]
    .sort(([, one], [, other]) => other - one)
    .flatMap(([name]) => catalog.get(name) ?? []);
}

/** Node types by a property, whose values are in alphabetical order. */
export function grouped(
  types: readonly NodeType[],
  by: "category" | "pack",
): ReadonlyMap<string, readonly NodeType[]> {
  const found = new Map<string, NodeType[]>();
  for (const type of types) found.set(type[by], [...(found.get(type[by]) ?? []), type]);
  return new Map([...found].sort(([one], [other]) => one.localeCompare(other)));
}

/** What lies in a folder of the tree of categories: folders in it, and node types. */
export function inCategory(
  types: readonly NodeType[],
  folder: string,
): { readonly folders: readonly string[]; readonly types: readonly NodeType[] } {
  const start = folder === "" ? "" : `${folder}/`;
  const inside = types.filter(({ category }) => `${category}/`.startsWith(start));
  const deeper = inside.flatMap(({ category }) => {
    const rest = category.slice(start.length);
    return category.length > folder.length && rest !== "" ? [rest.split("/")[0] ?? ""] : [];
  });
  return {
    folders: [...new Set(deeper)].sort(),
    types: inside.filter(({ category }) => category === folder),
  };
}

/** What goes in and out of a node of a type, in a line. */
export function socketsOf(type: NodeType): string {
  const given = offered(type)
    .map(({ type: one }) => one)
    .join(", ");
  const made = type.outputs.map(({ type: one }) => one).join(", ");
  return `${given || "nothing"} → ${made || "nothing"}`;
}
