/** Sets a numbered bookmark at the viewport, or removes one. */
import { useState } from "react";
import { bookmark, forget } from "../commands/edits/bookmarks";
import { bookmarksOf, NUMBERS } from "../document/bookmarks";
import { nodesOf } from "../document/model";
import { graphAt, trail } from "../document/scope";
import { docOf, useActive } from "../state/documents";
import { type Entry, Picker } from "../ui/Picker";

const REMOVE = "remove";

export function Bookmarks({ onClose }: { readonly onClose: () => void }) {
  const session = useActive();
  const [query, setQuery] = useState("");
  if (session === null) return null;
  const doc = docOf(session);
  const set = bookmarksOf(doc);
  /** Names the node nearest to the centre of a bookmark. */
  const near = (number: number): string => {
    const place = set.get(number);
    if (place === undefined) return "free";
    const [node] = [...nodesOf(graphAt(doc, place.path) ?? doc)].sort(
      (one, other) =>
        Math.hypot(one.x + one.width / 2 - place.x, one.y + one.height / 2 - place.y) -
        Math.hypot(other.x + other.width / 2 - place.x, other.y + other.height / 2 - place.y),
    );
    const name = node === undefined ? "" : `${node.title || node.type} #${node.id}`;
    return [...trail(doc, place.path), name].join(" › ");
  };
  const entries: readonly Entry[] = [
    ...NUMBERS.map((number) => {
      return { id: String(number), title: `Set bookmark ${number}`, detail: near(number) };
    }),
    ...[...set.keys()].map((number) => {
      return {
        id: `${REMOVE} ${number}`,
        title: `Remove bookmark ${number}`,
        detail: near(number),
      };
    }),
  ];
  return (
    <Picker
      label="Bookmark this place"
      query={query}
      onQuery={setQuery}
      entries={entries.filter(({ title }) => title.toLowerCase().includes(query.toLowerCase()))}
      onClose={onClose}
      onPick={(id) => {
        onClose();
        if (id.startsWith(REMOVE)) forget(Number(id.slice(REMOVE.length)));
        else bookmark(Number(id));
      }}
    />
  );
}
