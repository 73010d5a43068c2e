/** Stores viewports in the graphs of a document as bookmarks 1 to 9. */
import { fieldsOf, type JsonObject, numberFrom, textsOf } from "../json";
import type { Place } from "./commands";
import { editorDataOf, withEditorData } from "./editorData";
import type { Doc } from "./model";
import { graphAt, type Path } from "./scope";

export const NUMBERS = [1, 2, 3, 4, 5, 6, 7, 8, 9] as const;

export interface Bookmark extends Place {
  /** The path of the graph. */
  readonly path: Path;
  /** The zoom; x and y are the centre of the viewport. */
  readonly zoom: number;
}

const KEY = "bookmarks";
const ZOOMS = [0.05, 4] as const;

/** Returns the bookmarks whose graphs exist. */
export function bookmarksOf(doc: Doc): ReadonlyMap<number, Bookmark> {
  const own = editorDataOf(doc, KEY);
  return new Map(
    NUMBERS.flatMap((number): [number, Bookmark][] => {
      const raw = fieldsOf(own[number]);
      const [x, y, zoom] = [raw.x, raw.y, raw.zoom].map((one) => numberFrom(one, Number.NaN));
      const path = textsOf(raw.path);
      if (x === undefined || y === undefined || zoom === undefined) return [];
      if (!Number.isFinite(x + y + zoom) || graphAt(doc, path) === null) return [];
      return [[number, { path, x, y, zoom: Math.max(ZOOMS[0], Math.min(ZOOMS[1], zoom)) }]];
    }),
  );
}

export function setBookmark(doc: Doc, number: number, { path, x, y, zoom }: Bookmark): Doc {
  const made: JsonObject = { path: [...path], x, y, zoom };
  return withEditorData(doc, KEY, { ...editorDataOf(doc, KEY), [number]: made });
}

export function removeBookmark(doc: Doc, number: number): Doc {
  const { [String(number)]: _, ...others } = editorDataOf(doc, KEY);
  return withEditorData(doc, KEY, others);
}
