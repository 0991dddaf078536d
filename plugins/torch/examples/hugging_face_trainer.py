"""Hugging Face's Trainer stands on Accelerate, and takes the process group that there is.

WIRESUM_SWITCH=... torchrun --nproc-per-node 2 hugging_face_trainer.py
"""

import tempfile
from typing import Any

import torch
import torch.distributed as dist
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import wiresum.torch


class Parity(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Samples with a label: is the first word an odd one?"""

    def __init__(self, examples: int) -> None:
        self._words = torch.randint(0, 100, (examples, 8), generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self._words)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": self._words[index], "labels": self._words[index, 0] % 2}


def main() -> None:
    dist.init_process_group("wiresum")  # the one line, before the TrainingArguments
    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=100, hidden_size=64, num_hidden_layers=1, num_attention_heads=2, intermediate_size=128, num_labels=2
    )
    model = BertForSequenceClassification(config)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            per_device_train_batch_size=32,
            num_train_epochs=6,
            learning_rate=2e-3,
            logging_strategy="epoch",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        trainer = Trainer(model=model, args=arguments, train_dataset=Parity(512))
        trainer.train()
        if dist.get_rank() == 0:
            losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
            for loss in losses:
                print(f"loss {float(loss):.4f}; {wiresum.torch.stats().bytes_reduced} bytes summed in the network")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
