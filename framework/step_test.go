package framework

import "testing"

func TestStepIDText(t *testing.T) {
	for text, id := range map[string]StepID{
		"symptom": StepSymptom, "before/proxy-mode": StepBefore("proxy-mode"), "remedy/static-route": StepRemedy("static-route"),
	} {
		var read StepID
		if err := read.UnmarshalText([]byte(text)); err != nil || read != id || id.String() != text {
			t.Errorf("%q is read as %v, %v; %v is written as %q", text, read, err, id, id)
		}
	}
	var id StepID
	if err := id.UnmarshalText([]byte("/route")); err == nil {
		t.Error("a step without a kind is read")
	}
}
