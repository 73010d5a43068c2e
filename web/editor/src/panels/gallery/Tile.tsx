/** Shows one image of the gallery, which can be opened, marked, starred, deleted and dragged. */
import { Star } from "lucide-react";
import { setImageDrag } from "../../ui/imageDrag";

export function Tile({
  name,
  title,
  address,
  thumbnail,
  picked,
  marked,
  starred,
  carries,
  onOpen,
  onMark,
  onStar,
  onTrash,
}: {
  readonly name: string;
  readonly title: string;
  readonly address: string;
  readonly thumbnail: string;
  /** Whether the image is chosen for a comparison. */
  readonly picked: boolean;
  readonly marked: boolean;
  readonly starred: boolean;
  /** The addresses that are dragged with a marked image. */
  readonly carries: readonly string[];
  readonly onOpen: () => void;
  readonly onMark: () => void;
  readonly onStar: () => void;
  readonly onTrash: () => void;
}) {
  const keys: Readonly<Record<string, () => void>> = { x: onMark, s: onStar, Delete: onTrash };
  return (
    <li className={marked ? "marked" : ""}>
      <button
        type="button"
        title={title}
        aria-keyshortcuts="x s Delete"
        className={picked ? "picked" : ""}
        draggable
        onDragStart={(event) => setImageDrag(event, marked ? carries : [address])}
        onClick={onOpen}
        onKeyDown={(event) => {
          const act = keys[event.key];
          if (act === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
          event.preventDefault();
          act();
        }}
      >
        <img draggable={false} src={thumbnail} alt={name} loading="lazy" />
      </button>
      <input type="checkbox" aria-label={`mark ${name}`} checked={marked} onChange={onMark} />
      <button
        type="button"
        className="star"
        aria-label={`star ${name}`}
        aria-pressed={starred}
        onClick={onStar}
      >
        <Star size={14} fill={starred ? "currentColor" : "none"} />
      </button>
    </li>
  );
}
