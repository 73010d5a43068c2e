/** Sets and removes bookmarks of the viewport, and goes to them. */
import { bookmarksOf, removeBookmark, setBookmark } from "../../document/bookmarks";
import { useCanvas } from "../../state/canvas";
import { activeSession, docOf, useDocuments } from "../../state/documents";
import { notify } from "../../state/live";

export function bookmark(number: number): void {
  const session = activeSession();
  if (session === null) return;
  const { x, y, zoom } = useCanvas.getState().view();
  useDocuments
    .getState()
    .changeDocument(session.id, `set bookmark ${number}`, (doc) =>
      setBookmark(doc, number, { path: session.path, x, y, zoom }),
    );
}

export function forget(number: number): void {
  const session = activeSession();
  if (session !== null)
    useDocuments
      .getState()
      .changeDocument(session.id, `remove bookmark ${number}`, (doc) =>
        removeBookmark(doc, number),
      );
}

export function goTo(number: number): void {
  const session = activeSession();
  const place = session && bookmarksOf(docOf(session)).get(number);
  if (!session || !place) return notify(`bookmark ${number} is not set; B sets it`);
  useDocuments.getState().update(session.id, { path: place.path });
  // the canvas of another graph mounts first
  requestAnimationFrame(() => requestAnimationFrame(() => useCanvas.getState().look(place)));
}
