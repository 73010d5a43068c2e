/** Edits an image: choose, upload by button or drop, paint a mask; shows a thumbnail. */
import { loadedPicture, addressOf, upload } from "../server/client";
import { refreshCatalog, notify } from "../state/live";
import { ChoiceField } from "./ChoiceField";
import type { Field } from "./field";

export function PictureField({ onMask, ...field }: Field & { readonly onMask: () => void }) {
  const value = String(field.value);
  // outputs and temporary images are valid, but not among the choices
  const choices = /\[(output|temp)\]$/.test(value)
    ? [value, ...field.widget.choices]
    : field.widget.choices;
  const take = (file: File | undefined) => {
    if (file === undefined) return;
    upload(file)
      .then(async (name) => {
        await refreshCatalog();
        field.set(name);
      })
      .catch(notify);
  };
  return (
    <>
      <ChoiceField {...field} widget={{ ...field.widget, choices }} />
      <label className="upload" title="upload a picture, or drop it on the node">
        upload
        <input type="file" accept="image/*" onChange={(event) => take(event.target.files?.[0])} />
      </label>
      <button type="button" className="upload" onClick={onMask}>
        mask
      </button>
      <img
        className="thumbnail"
        alt={value}
        src={addressOf(loadedPicture(value), 256)}
        onDragOver={(event) => event.preventDefault()}
        onDrop={(event) => {
          const [file] = event.dataTransfer.files;
          if (!file?.type.startsWith("image/")) return;
          event.preventDefault();
          event.stopPropagation();
          take(file);
        }}
      />
    </>
  );
}
