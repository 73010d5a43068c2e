/** Offers actions for all marked images. */
import { useSettings } from "../../state/settings";
import { nameIn } from "../../ui/imageDrag";

export function Marked({
  addresses,
  onTrash,
  onNone,
}: {
  readonly addresses: readonly string[];
  readonly onTrash: () => void;
  readonly onNone: () => void;
}) {
  const { stars, star } = useSettings();
  const all = addresses.every((address) => stars.includes(address));
  return (
    <p className="steering" role="group" aria-label="marked pictures">
      {addresses.length} marked
      <button type="button" onClick={() => star(addresses, !all)}>
        {all ? "Remove stars" : "Star"}
      </button>
      <button type="button" onClick={() => addresses.forEach(download)}>
        Download
      </button>
      <button type="button" onClick={onTrash}>
        Delete
      </button>
      <button type="button" onClick={onNone}>
        Unmark all
      </button>
    </p>
  );
}

function download(address: string): void {
  const link = document.createElement("a");
  link.href = address;
  link.download = nameIn(new URL(address, document.baseURI));
  link.click();
}
