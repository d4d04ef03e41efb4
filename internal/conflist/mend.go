package conflist

import "fmt"

// Mend does once what the reading's verdict says, and returns [ErrChanged] if
// somebody else wrote the file at the same moment: then nothing is lost but the
// moment, and the directory is to be read again. It never makes a file.
func Mend(o Options, r Reading, known Known) error {
	if !r.Repairable() {
		return fmt.Errorf("this is not to be mended by a program (%s): %w", r.Verdict, r.Reason)
	}
	if o.BinDir != "" && (r.Verdict == Append || r.Verdict == Update) {
		if err := VerifyBinary(o.BinDir, o.Plugin); err != nil {
			return err
		}
	}
	text, err := r.Active.mend(r.Verdict, o, known.entry(o))
	if err != nil {
		return err
	}
	if err := replace(r.Active.Path, r.Active.content, text); err != nil {
		return fmt.Errorf("replacing %s: %w", r.Active.Path, err)
	}
	return nil
}
