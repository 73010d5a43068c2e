/** Moves images to the trash, and restores the last ones. */
import { useState } from "react";
import { type ListedFile, movedFiles } from "../../server/files";
import { notify } from "../../state/live";

/** The images deleted last, by their names in the trash. */
interface Deleted {
  readonly type: ListedFile["type"];
  readonly names: readonly string[];
}

/** `reload`: called after images are restored. */
export function useTrash(reload: () => void) {
  const [deleted, setDeleted] = useState<Deleted | null>(null);
  return {
    deleted,
    async trash(type: ListedFile["type"], names: readonly string[]): Promise<boolean> {
      try {
        setDeleted({ type, names: await movedFiles("trash", type, names) });
        return true;
      } catch (error) {
        notify(error);
        return false;
      }
    },
    async restore(): Promise<void> {
      if (deleted === null) return;
      try {
        await movedFiles("restore", deleted.type, deleted.names);
        setDeleted(null);
        reload();
      } catch (error) {
        notify(error);
      }
    },
  };
}
